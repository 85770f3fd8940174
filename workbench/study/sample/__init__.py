"""How a study chooses the next plan to try."""
