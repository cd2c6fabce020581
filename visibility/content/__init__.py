"""Message contents: payload encoding, receipt handles, sequence numbers and sealing. Stateless."""
