"""The security log: logins, refusals and changes of rights, signed and chained like the journal of messages."""
