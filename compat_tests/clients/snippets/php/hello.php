<?php

require 'vendor/autoload.php';

$sqs = new Aws\Sqs\SqsClient(['region' => getenv('AWS_REGION')]);

$url = $sqs->createQueue(['QueueName' => 'orders'])['QueueUrl'];
$sqs->sendMessage(['QueueUrl' => $url, 'MessageBody' => 'hello']);

$message = $sqs->receiveMessage(['QueueUrl' => $url, 'WaitTimeSeconds' => 20])['Messages'][0];
echo $message['Body'], "\n";
$sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => $message['ReceiptHandle']]);
