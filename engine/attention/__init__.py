"""Token mixers: softmax attention over pages, and the gated delta net."""
