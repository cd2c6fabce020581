"""Amazon CloudWatch's GetMetricData, GetMetricStatistics and ListMetrics, for AWS/SQS."""
