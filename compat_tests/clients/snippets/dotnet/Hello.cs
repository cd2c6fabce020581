using Amazon.SQS;
using Amazon.SQS.Model;

using var sqs = new AmazonSQSClient();

var url = (await sqs.CreateQueueAsync("orders")).QueueUrl;
await sqs.SendMessageAsync(url, "hello");

var received = await sqs.ReceiveMessageAsync(
    new ReceiveMessageRequest { QueueUrl = url, WaitTimeSeconds = 20 });
var message = received.Messages[0];
Console.WriteLine(message.Body);
await sqs.DeleteMessageAsync(url, message.ReceiptHandle);
