"""What SQS says: operations, results, errors, limits and the rules on values. Pure and stateless."""
