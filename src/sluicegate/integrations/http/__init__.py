"""What all frameworks share: rules, keys, the gate and the response, without any framework."""
