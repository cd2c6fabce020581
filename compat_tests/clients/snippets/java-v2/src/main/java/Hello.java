import software.amazon.awssdk.services.sqs.SqsClient;

public class Hello {
    public static void main(String[] arguments) {
        try (var sqs = SqsClient.create()) {
            var url = sqs.createQueue(q -> q.queueName("orders")).queueUrl();
            sqs.sendMessage(m -> m.queueUrl(url).messageBody("hello"));

            var received = sqs.receiveMessage(r -> r.queueUrl(url).waitTimeSeconds(20));
            var message = received.messages().get(0);
            System.out.println(message.body());
            sqs.deleteMessage(d -> d.queueUrl(url).receiptHandle(message.receiptHandle()));
        }
    }
}
