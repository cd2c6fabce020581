use aws_config::BehaviorVersion;
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let sqs = aws_sdk_sqs::Client::new(&config);

    let created = sqs.create_queue().queue_name("orders").send().await?;
    let url = created.queue_url().ok_or("no queue URL")?;
    sqs.send_message()
        .queue_url(url)
        .message_body("hello")
        .send()
        .await?;

    let received = sqs
        .receive_message()
        .queue_url(url)
        .wait_time_seconds(20)
        .send()
        .await?;
    let message = received.messages().first().ok_or("no message")?;
    println!("{}", message.body().unwrap_or_default());
    sqs.delete_message()
        .queue_url(url)
        .receipt_handle(message.receipt_handle().unwrap_or_default())
        .send()
        .await?;
    Ok(())
}
