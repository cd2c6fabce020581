const AWS = require("aws-sdk");

const sqs = new AWS.SQS({ endpoint: process.env.AWS_ENDPOINT_URL });

async function main() {
  const { QueueUrl } = await sqs.createQueue({ QueueName: "orders" }).promise();
  await sqs.sendMessage({ QueueUrl, MessageBody: "hello" }).promise();

  const { Messages } = await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 20 }).promise();
  const [{ Body, ReceiptHandle }] = Messages;
  console.log(Body);
  await sqs.deleteMessage({ QueueUrl, ReceiptHandle }).promise();
}

main();
