package main

import (
	"fmt"
	"os"

	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/session"
	"github.com/aws/aws-sdk-go/service/sqs"
)

func main() {
	endpoint := os.Getenv("AWS_ENDPOINT_URL")
	client := sqs.New(session.Must(session.NewSession(&aws.Config{Endpoint: &endpoint})))

	queue, err := client.CreateQueue(&sqs.CreateQueueInput{QueueName: aws.String("orders")})
	check(err)
	_, err = client.SendMessage(&sqs.SendMessageInput{
		QueueUrl: queue.QueueUrl, MessageBody: aws.String("hello"),
	})
	check(err)

	received, err := client.ReceiveMessage(&sqs.ReceiveMessageInput{
		QueueUrl: queue.QueueUrl, WaitTimeSeconds: aws.Int64(20),
	})
	check(err)
	message := received.Messages[0]
	fmt.Println(*message.Body)
	_, err = client.DeleteMessage(&sqs.DeleteMessageInput{
		QueueUrl: queue.QueueUrl, ReceiptHandle: message.ReceiptHandle,
	})
	check(err)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
