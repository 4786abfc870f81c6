"""Demonstrations: what Headgate does, to be watched in a terminal.

Each is a model that runs in virtual time and knows no terminal, and a thin shell that
moves it in step with real time and draws it. Without a terminal the model runs at once.
"""
