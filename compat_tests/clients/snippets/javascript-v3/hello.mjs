import { SQS } from "@aws-sdk/client-sqs";

const sqs = new SQS();

const { QueueUrl } = await sqs.createQueue({ QueueName: "orders" });
await sqs.sendMessage({ QueueUrl, MessageBody: "hello" });

const { Messages } = await sqs.receiveMessage({ QueueUrl, WaitTimeSeconds: 20 });
const [{ Body, ReceiptHandle }] = Messages;
console.log(Body);
await sqs.deleteMessage({ QueueUrl, ReceiptHandle });
