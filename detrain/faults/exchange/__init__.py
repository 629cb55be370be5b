"""Files of SASSIFI and NVBitFI: profiles, lists of injections, results; written so that their scripts can read them."""
