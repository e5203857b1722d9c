"""What starts and guards the processes: SuperLink, proxy, certificates, the app, a whole federation on one machine."""
