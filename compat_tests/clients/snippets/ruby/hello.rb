require 'aws-sdk-sqs'

sqs = Aws::SQS::Client.new

url = sqs.create_queue(queue_name: 'orders').queue_url
sqs.send_message(queue_url: url, message_body: 'hello')

message = sqs.receive_message(queue_url: url, wait_time_seconds: 20).messages.first
puts message.body
sqs.delete_message(queue_url: url, receipt_handle: message.receipt_handle)
