"""Large bodies: uploaded and downloaded in parts."""
