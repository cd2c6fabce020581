package main

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

func main() {
	ctx := context.Background()
	settings, err := config.LoadDefaultConfig(ctx)
	check(err)
	client := sqs.NewFromConfig(settings)

	queue, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String("orders")})
	check(err)
	_, err = client.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl: queue.QueueUrl, MessageBody: aws.String("hello"),
	})
	check(err)

	received, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: queue.QueueUrl, WaitTimeSeconds: 20,
	})
	check(err)
	message := received.Messages[0]
	fmt.Println(*message.Body)
	_, err = client.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl: queue.QueueUrl, ReceiptHandle: message.ReceiptHandle,
	})
	check(err)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
