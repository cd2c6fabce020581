import com.amazonaws.client.builder.AwsClientBuilder.EndpointConfiguration;
import com.amazonaws.services.sqs.AmazonSQSClientBuilder;
import com.amazonaws.services.sqs.model.ReceiveMessageRequest;

public class Hello {
    public static void main(String[] arguments) {
        var endpoint = new EndpointConfiguration(
                System.getenv("AWS_ENDPOINT_URL"), System.getenv("AWS_REGION"));
        var sqs = AmazonSQSClientBuilder.standard().withEndpointConfiguration(endpoint).build();

        var url = sqs.createQueue("orders").getQueueUrl();
        sqs.sendMessage(url, "hello");

        var receive = new ReceiveMessageRequest(url).withWaitTimeSeconds(20);
        var message = sqs.receiveMessage(receive).getMessages().get(0);
        System.out.println(message.getBody());
        sqs.deleteMessage(url, message.getReceiptHandle());
        sqs.shutdown();
    }
}
