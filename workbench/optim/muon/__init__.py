"""Muon: orthogonalised momentum for hidden matrices, AdamW for the rest."""
