"""What every other package stands on: records, files, devices, several processes, metrics and native kernels."""
