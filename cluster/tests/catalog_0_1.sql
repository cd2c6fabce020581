BEGIN TRANSACTION;
CREATE TABLE deleted_names (
        account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL, deleted_at_ms INTEGER NOT NULL,
        PRIMARY KEY (account, region, name));
INSERT INTO "deleted_names" VALUES('000000000000','us-east-1','deleted',1700000000000);
INSERT INTO "deleted_names" VALUES('000000000000','us-east-1','last',1700000000000);
CREATE TABLE deleted_queues (
        queue_id INTEGER PRIMARY KEY, 
    account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, shard INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL, modified_at_ms INTEGER NOT NULL,
    receipt_key BLOB NOT NULL, attributes TEXT NOT NULL, tags TEXT NOT NULL,
    deduplication_scope TEXT NOT NULL DEFAULT ''
, deleted_at_ms INTEGER NOT NULL,
        state INTEGER NOT NULL DEFAULT 0, continued_as INTEGER NOT NULL DEFAULT 0);
INSERT INTO "deleted_queues" VALUES(3,'000000000000','us-east-1','purged',1,0,1700000000000,1700000000000,X'000000000000000000000003ABCE5002A5892FDF720F21F0B0647B47C33425BA7C167DCE844C31E23F08904A0DC90821A62C2F5371F6A41E92820320','{"VisibilityTimeout": "30", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "true"}','{}','',1700000000000,0,4);
INSERT INTO "deleted_queues" VALUES(5,'000000000000','us-east-1','deleted',1,0,1700000000000,1700000000000,X'000000000000000000000004C83EEE42605F52A13CD1D884D3F21646ED39E1CC6CAC10564DB17AB400DE794CDAD1853DE7E0349DD7C0FF70F7449677','{"VisibilityTimeout": "9", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "true"}','{}','',1700000000000,0,0);
CREATE TABLE queues (
        queue_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
        
    account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, shard INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL, modified_at_ms INTEGER NOT NULL,
    receipt_key BLOB NOT NULL, attributes TEXT NOT NULL, tags TEXT NOT NULL,
    deduplication_scope TEXT NOT NULL DEFAULT ''
, UNIQUE (account, region, name));
INSERT INTO "queues" VALUES(1,'000000000000','us-east-1','plain',1,0,1700000000000,1700000000000,X'00000000000000000000000129C12422F47667DCA9005DA191FFF4959143E8B5813360910672CD6E9299948B8B6AA0E87B16D5E6DC34A774A79B3CDC','{"VisibilityTimeout": "30", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600", "DelaySeconds": "7", "ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "true"}','{"team": "blue"}','');
INSERT INTO "queues" VALUES(2,'000000000000','us-east-1','scoped.fifo',2,0,1700000000000,1700000000000,X'000000000000000000000002BE2C3633F9FBB54A618892D68757B9631FD56B38EFF53969E4A59245D72924E4580E5FAD8942A742D681B6330E97730A','{"VisibilityTimeout": "30", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0", "ContentBasedDeduplication": "false", "DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue", "SqsManagedSseEnabled": "true", "FifoQueue": "true"}','{}','messageGroup');
INSERT INTO "queues" VALUES(4,'000000000000','us-east-1','purged',2,0,1700000000000,1700000000000,X'000000000000000000000003ABCE5002A5892FDF720F21F0B0647B47C33425BA7C167DCE844C31E23F08904A0DC90821A62C2F5371F6A41E92820320','{"VisibilityTimeout": "30", "MaximumMessageSize": "1048576", "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "true"}','{}','');
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('queues',6);
COMMIT;
