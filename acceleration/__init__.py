"""The same models, decoding faster on the hardware at hand."""
