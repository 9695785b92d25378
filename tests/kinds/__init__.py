"""One file for each kind of fault that users ran into. Each file checks a property that must hold for every case of the kind."""
