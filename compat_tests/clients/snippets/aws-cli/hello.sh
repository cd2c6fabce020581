set -e
sqs() { aws --endpoint-url "$AWS_ENDPOINT_URL" --output text sqs "$@"; }

url=$(sqs create-queue --queue-name orders --query QueueUrl)
sqs send-message --queue-url "$url" --message-body hello > /dev/null

sqs receive-message --queue-url "$url" --wait-time-seconds 20 \
    --query 'Messages[0].[Body, ReceiptHandle]' |
    while read -r body handle; do
        echo "$body"
        sqs delete-message --queue-url "$url" --receipt-handle "$handle"
    done
