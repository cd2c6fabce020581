"""A message's life with boto3: sent, received, printed and deleted."""

import boto3

sqs = boto3.client("sqs")
url = sqs.create_queue(QueueName="orders")["QueueUrl"]
sqs.send_message(QueueUrl=url, MessageBody="hello")

message = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"][0]
print(message["Body"])
sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
