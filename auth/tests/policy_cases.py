"""TABLE: requests, policies, and the outcome that AWS documents.

Each case: name, caller, action, the user's policies, the queue's policy, condition keys of the
request, the rule that decides.
The queue is `arn:aws:sqs:us-east-1:111111111111:orders` unless the case names another.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from auth.policy import Principal, Rule

HOME, AWAY = "1" * 12, "2" * 12
QUEUE = f"arn:aws:sqs:us-east-1:{HOME}:orders"


def _user(account: str, name: str) -> Principal:
    return Principal(account, f"arn:aws:iam::{account}:user/{name}", f"AIDA{name.upper()}", name)


ROOT = Principal(HOME, f"arn:aws:iam::{HOME}:root", "AIDAROOT")
AWAY_ROOT = Principal(AWAY, f"arn:aws:iam::{AWAY}:root", "AIDAAWAY")
ANN = _user(HOME, "ann")
BOB = _user(AWAY, "bob")
NOBODY = Principal("anonymous", "", "ANONYMOUS")

AWS = "AWS"
SEND, RECEIVE, LIST = "sqs:SendMessage", "sqs:ReceiveMessage", "sqs:ListQueues"
HOLD, OLD_HOLD = "holdfast:HoldMessages", "holdfast:QuarantineMessages"
LIFT = "holdfast:LiftProtection"
Statement = dict[str, Any]


class Case(NamedTuple):
    """One row."""

    name: str
    who: Principal
    rule: Rule
    action: str = SEND
    identity: tuple[Statement, ...] = ()
    queue: tuple[Statement, ...] = ()
    says: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    resource: str = QUEUE
    version: str = "2012-10-17"


def allow(action: Any = SEND, resource: Any = "*", **more: Any) -> Statement:
    """A statement of a user's policy."""
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any = SEND, resource: Any = "*", **more: Any) -> Statement:
    """Its counterpart."""
    return allow(action, resource, **more) | {"Effect": "Deny"}


def grant(principal: Any = "*", action: Any = SEND, **more: Any) -> Statement:
    """A statement of the queue's policy."""
    return {
        "Effect": "Allow", "Principal": principal, "Action": action, "Resource": QUEUE, **more,
    }  # fmt: skip


def forbid(principal: Any = "*", action: Any = SEND, **more: Any) -> Statement:
    """Its counterpart."""
    return grant(principal, action, **more) | {"Effect": "Deny"}


def when(operator: str, key: str, *values: Any) -> dict[str, Any]:
    """A condition as a keyword argument."""
    return {"Condition": {operator: {key: list(values) if len(values) != 1 else values[0]}}}


def _without(statement: Statement, *names: str) -> Statement:
    return {name: value for name, value in statement.items() if name not in names}


def _all_but(*names: str) -> Statement:
    return _without(forbid(), "Principal") | {"NotPrincipal": {AWS: list(names)}}


def _not_action(statement: Statement, action: str = SEND) -> Statement:
    return _without(statement, "Action") | {"NotAction": action}


def _not_resource(arn: str) -> Statement:
    return _without(allow(), "Resource") | {"NotResource": arn}


def _if(
    name: str,
    rule: Rule,
    says: Mapping[str, tuple[str, ...]],
    operator: str,
    key: str,
    *values: Any,
) -> Case:
    """A policy of Ann's that allows under one condition."""
    return Case(name, ANN, rule, identity=(allow(**when(operator, key, *values)),), says=says)


YES, GIVEN = Rule.IDENTITY_ALLOW, Rule.QUEUE_ALLOW
NO, NOT_GIVEN = Rule.NO_IDENTITY_ALLOW, Rule.NO_QUEUE_ALLOW
BARRED, FORBIDDEN = Rule.IDENTITY_DENY, Rule.QUEUE_DENY
IP = "aws:sourceip"
ENV, ENV_TWICE = "aws:ResourceTag/Env", {"aws:resourcetag/env": ("prod", "x")}
SAYS_ANN = {"aws:username": ("ann",)}
PLAIN = {"aws:securetransport": ("false",)}
SECURE = {"aws:securetransport": ("true",)}
TEN = ("IpAddress", "aws:SourceIp", "10.0.0.0/8")
NOT_TEN = ("NotIpAddress", "aws:SourceIp", "10.0.0.0/8")
NO_PLAIN = forbid(**when("Bool", "aws:SecureTransport", "false"))

CASES = (
    # -- principals --------------------------------------------------------------------------------
    Case("root may do everything at home", ROOT, Rule.ROOT),
    Case("root needs no policy for a list", ROOT, Rule.ROOT, LIST,
         resource=f"arn:aws:sqs:us-east-1:{HOME}:*"),
    Case("a user may do nothing without a policy", ANN, NO),
    Case("a user's policy allows", ANN, YES, identity=(allow(),)),
    Case("a user's policy for something else does not", ANN, NO, identity=(allow(RECEIVE),)),
    Case("another account's root may do nothing by itself", AWAY_ROOT, NOT_GIVEN),
    Case("nobody may do anything by itself", NOBODY, NOT_GIVEN),
    Case("nobody may what everyone may", NOBODY, GIVEN, queue=(grant(),)),
    Case("everyone can be written as an AWS principal", NOBODY, GIVEN, queue=(grant({AWS: "*"}),)),
    Case("nobody is no account", NOBODY, NOT_GIVEN, queue=(grant({AWS: [HOME, AWAY]}),)),
    Case("everyone includes the account's users", ANN, GIVEN, queue=(grant(),)),
    Case("everyone includes another account's root", AWAY_ROOT, GIVEN, queue=(grant(),)),
    Case("a user of another account needs a policy at home too", BOB, NO, queue=(grant(),)),
    Case("and with it is let in", BOB, GIVEN, identity=(allow(),), queue=(grant(),)),
    Case("its own policy alone is not enough", BOB, NOT_GIVEN, identity=(allow(),)),
    Case("the queue's policy names a user", ANN, GIVEN, queue=(grant({AWS: ANN.arn}),)),
    Case("in a region's own partition", ANN, GIVEN,
         queue=(grant({AWS: ANN.arn.replace("aws", "aws-cn")}),)),
    Case("by its id", ANN, GIVEN, queue=(grant({AWS: ANN.user_id}),)),
    Case("another user is not meant", ANN, NO, queue=(grant({AWS: BOB.arn}),)),
    Case("an account's root stands for the account", AWAY_ROOT, GIVEN,
         queue=(grant({AWS: AWAY_ROOT.arn}),)),
    Case("so does its number", AWAY_ROOT, GIVEN, queue=(grant({AWS: AWAY}),)),
    Case("one of several principals", AWAY_ROOT, GIVEN, queue=(grant({AWS: [HOME, AWAY]}),)),
    Case("an account leaves it to its users' policies", ANN, NO, queue=(grant({AWS: HOME}),)),
    Case("which may let them", ANN, YES, identity=(allow(),), queue=(grant({AWS: HOME}),)),
    Case("also in another account", BOB, NO, queue=(grant({AWS: AWAY}),)),
    Case("a user of another account, named and let", BOB, GIVEN, identity=(allow(),),
         queue=(grant({AWS: BOB.arn}),)),
    Case("a service of AWS is none of the callers", ROOT, Rule.ROOT,
         queue=(grant({"Service": "sns.amazonaws.com"}),)),
    Case("and lets nobody in", AWAY_ROOT, NOT_GIVEN,
         queue=(grant({"Service": "sns.amazonaws.com"}),)),
    # -- deny --------------------------------------------------------------------------------------
    Case("a deny of the user's policies wins", ANN, BARRED, identity=(allow(), deny())),
    Case("whatever the order", ANN, BARRED, identity=(deny(), allow("*"))),
    Case("also over the queue's policy", ANN, BARRED, identity=(deny(),), queue=(grant(),)),
    Case("a deny of the queue's policy wins", ANN, FORBIDDEN, identity=(allow(),),
         queue=(forbid(), grant())),
    Case("also over root", ROOT, FORBIDDEN, queue=(forbid(),)),
    Case("but root can repair the policy", ROOT, Rule.ROOT, "sqs:SetQueueAttributes",
         queue=(forbid(action="sqs:*"),)),
    Case("and delete the queue", ROOT, Rule.ROOT, "sqs:DeleteQueue",
         queue=(forbid(action="sqs:*"),)),
    Case("another root cannot", AWAY_ROOT, FORBIDDEN, "sqs:DeleteQueue",
         queue=(forbid(action="sqs:*"),)),
    Case("nor can a user of the account", ANN, FORBIDDEN, "sqs:SetQueueAttributes",
         identity=(allow("*"),), queue=(forbid(action="sqs:*"),)),
    Case("a denied account denies its users", ANN, FORBIDDEN, identity=(allow(),),
         queue=(forbid({AWS: HOME}),)),
    Case("a deny for others does not matter", ANN, YES, identity=(allow(),),
         queue=(forbid({AWS: AWAY}),)),
    Case("a deny of another action does not matter", ANN, YES, identity=(allow(), deny(RECEIVE))),
    # -- NotPrincipal ------------------------------------------------------------------------------
    Case("NotPrincipal spares who is listed with its account", ANN, YES,
         identity=(allow(),), queue=(_all_but(ANN.arn, HOME),)),
    Case("and the root with its account alone", AWAY_ROOT, GIVEN,
         queue=(grant(), _all_but(AWAY))),
    Case("not who is listed without it", ANN, FORBIDDEN, identity=(allow(),),
         queue=(_all_but(ANN.arn),)),
    Case("nor others", AWAY_ROOT, FORBIDDEN, queue=(grant(), _all_but(HOME))),
    Case("nor nobody", NOBODY, FORBIDDEN, queue=(grant(), _all_but(HOME))),
    # -- actions -----------------------------------------------------------------------------------
    Case("actions are compared without case", ANN, YES, identity=(allow("SQS:sendmessage"),)),
    Case("all actions", ANN, YES, identity=(allow("*"),)),
    Case("all actions of SQS", ANN, YES, identity=(allow("sqs:*"),)),
    Case("a part of the name", ANN, YES, identity=(allow("sqs:Send*"),)),
    Case("one character", ANN, YES, identity=(allow("sqs:SendMessag?"),)),
    Case("another service's actions are not meant", ANN, NO, identity=(allow("sns:*"),)),
    Case("one of a list", ANN, YES, identity=(allow([RECEIVE, SEND]),)),
    Case("a name is whole", ANN, NO, identity=(allow("sqs:Send"),)),
    Case("NotAction leaves out", ANN, NO, identity=(_not_action(allow()),)),
    Case("and means all others", ANN, YES, RECEIVE, identity=(_not_action(allow()),)),
    Case("NotAction with a deny", ANN, BARRED, RECEIVE, identity=(allow("*"), _not_action(deny()))),
    Case("an old name of an action", ANN, YES, HOLD, identity=(allow(OLD_HOLD),)),
    Case("of one that is denied", ANN, BARRED, HOLD,
         identity=(allow("*"), deny("holdfast:quar*"))),
    Case("of one that is left out", ANN, NO, HOLD, identity=(_not_action(allow(), OLD_HOLD),)),
    Case("of no other action", ANN, NO, "holdfast:DeleteMessages", identity=(allow(OLD_HOLD),)),
    # -- resources ---------------------------------------------------------------------------------
    Case("the queue by its ARN", ANN, YES, identity=(allow(resource=QUEUE),)),
    Case("another queue", ANN, NO, identity=(allow(resource=QUEUE + "2"),)),
    Case("a prefix of the name", ANN, YES,
         identity=(allow(resource=f"arn:aws:sqs:*:{HOME}:ord*"),)),
    Case("any region and account", ANN, YES, identity=(allow(resource="arn:aws:sqs:*:*:orders"),)),
    Case("a region's own partition", ANN, YES,
         identity=(allow(resource=f"arn:aws-cn:sqs:cn-north-1:{HOME}:orders"),),
         resource=f"arn:aws:sqs:cn-north-1:{HOME}:orders"),
    Case("also for a deny", ANN, BARRED,
         identity=(allow(), deny(resource=f"arn:aws-us-gov:sqs:*:{HOME}:*"))),
    Case("also for another resource", ANN, NO,
         identity=(allow(resource=f"arn:aws-cn:sqs:us-east-1:{HOME}:other"),)),
    Case("any partition but one", ANN, BARRED,
         identity=(allow(), deny(resource=f"arn:aws-*:sqs:*:{HOME}:*"))),
    Case("missing segments are any", ANN, YES, identity=(allow(resource="arn:aws:sqs"),)),
    Case("a star stays in its segment", ANN, NO, identity=(allow(resource="arn:aws:*:orders"),)),
    Case("names are compared with case", ANN, NO, identity=(allow(resource=QUEUE.upper()),)),
    Case("NotResource leaves out", ANN, NO, identity=(_not_resource(QUEUE),)),
    Case("and means all others", ANN, YES, identity=(_not_resource(QUEUE + "2"),)),
    Case("a queue's policy for another queue gives nothing", AWAY_ROOT, NOT_GIVEN,
         queue=(grant() | {"Resource": QUEUE + "2"},)),
    Case("a queue's policy without a resource is about the queue", AWAY_ROOT, GIVEN,
         queue=(_without(grant(), "Resource"),)),
    # -- actions never granted to others -----------------------------------------------------------
    Case("no account may delete another's queue", AWAY_ROOT, NOT_GIVEN, "sqs:DeleteQueue",
         queue=(grant(action="*"),)),
    Case("nor set its attributes", AWAY_ROOT, NOT_GIVEN, "sqs:SetQueueAttributes",
         queue=(grant(action="*"),)),
    Case("nor may nobody", NOBODY, NOT_GIVEN, "sqs:TagQueue", queue=(grant(action="*"),)),
    Case("it may purge, if the policy says so", AWAY_ROOT, GIVEN, "sqs:PurgeQueue",
         queue=(grant(action="*"),)),
    Case("a user at home may, if the policy says so", ANN, GIVEN, "sqs:DeleteQueue",
         queue=(grant(action="*"),)),
    # -- actions of other services, which a queue's policy does not grant --------------------------
    Case("all actions in a queue's policy are those of SQS", ANN, NO, LIFT,
         queue=(grant({AWS: ANN.arn}, "*"),)),
    Case("so are all but one", ANN, NO, LIFT, queue=(_not_action(grant({AWS: ANN.arn})),)),
    Case("no action's name gives more", ANN, NO, LIFT, queue=(grant({AWS: ANN.arn}, LIFT),)),
    Case("nor to another account's root", AWAY_ROOT, NOT_GIVEN, HOLD,
         queue=(grant({AWS: AWAY}, "*"),)),
    Case("nor to its users", BOB, NOT_GIVEN, HOLD, identity=(allow("*"),),
         queue=(grant({AWS: BOB.arn}, "*"),)),
    Case("a user's policy does", ANN, YES, LIFT, identity=(allow("*"),), queue=(grant(),)),
    Case("a deny of a queue's policy is about all actions", ANN, FORBIDDEN, HOLD,
         identity=(allow("*"),), queue=(forbid(action="*"),)),
    Case("also with NotAction", ANN, FORBIDDEN, HOLD,
         identity=(allow("*"),), queue=(_not_action(forbid()),)),
    # -- conditions --------------------------------------------------------------------------------
    _if("from an address within", YES, {IP: ("10.1.2.3",)}, *TEN),
    _if("and from without", NO, {IP: ("11.1.2.3",)}, *TEN),
    _if("one of several networks", YES, {IP: ("11.1.2.3",)}, "IpAddress", "aws:SourceIp",
        "10.0.0.0/8", "11.0.0.0/8"),
    _if("IPv6", YES, {IP: ("2001:db8::1",)}, "IpAddress", "aws:SourceIp", "2001:db8::/32"),
    _if("an IPv4 address in IPv6's clothes", YES, {IP: ("::ffff:10.1.2.3",)}, *TEN),
    Case("a deny from elsewhere", ANN, BARRED, identity=(allow(), deny(**when(*NOT_TEN))),
         says={IP: ("11.1.2.3",)}),
    Case("a negated operator holds without the key", ANN, BARRED,
         identity=(allow(), deny(**when(*NOT_TEN)))),
    Case("no plain HTTP", ANN, FORBIDDEN, identity=(allow(),), queue=(NO_PLAIN,), says=PLAIN),
    Case("over TLS it passes", ANN, YES, identity=(allow(),), queue=(NO_PLAIN,), says=SECURE),
    _if("names of keys are compared without case", YES, SAYS_ANN, "StringEquals", "AWS:UserName",
        "ann"),
    _if("values with case", NO, SAYS_ANN, "StringEquals", "aws:username", "Ann"),
    _if("unless the operator ignores it", YES, SAYS_ANN, "StringEqualsIgnoreCase", "aws:username",
        "Ann"),
    _if("a pattern", YES, SAYS_ANN, "StringLike", "aws:username", "a*"),
    _if("StringEquals knows no patterns", NO, SAYS_ANN, "StringEquals", "aws:username", "a*"),
    _if("a key that is not there", NO, {}, "StringEquals", "aws:username", "ann"),
    _if("IfExists forgives that", YES, {}, "StringEqualsIfExists", "aws:username", "ann"),
    _if("not a wrong value", NO, {"aws:username": ("bob",)}, "StringEqualsIfExists", "aws:username",
        "ann"),
    _if("not equal to any of several", NO, SAYS_ANN, "StringNotEquals", "aws:username", "ann",
        "bob"),
    _if("a tag of the queue", YES, {"aws:resourcetag/team": ("a",)}, "StringEquals",
        "aws:ResourceTag/team", "a"),
    _if("a number", YES, {"k": ("10",)}, "NumericLessThanEquals", "k", 10),
    _if("that is too large", NO, {"k": ("10",)}, "NumericLessThan", "k", "10"),
    _if("what is no number fits none", NO, {"k": ("x",)}, "NumericLessThan", "k", "10"),
    _if("a date", YES, {"aws:currenttime": ("2026-11-21T10:00:00Z",)},
         "DateLessThan", "aws:CurrentTime", "2030-01-01T00:00:00Z"),
    _if("the very instant", YES, {"aws:currenttime": ("2026-11-21T10:00:00Z",)},
        "DateGreaterThanEquals", "aws:CurrentTime", "2026-11-21T10:00:00Z"),
    _if("a date as seconds", NO, {"aws:epochtime": ("1800000000",)}, "DateGreaterThan",
        "aws:EpochTime", "1900000000"),
    _if("Null wants it absent", YES, {}, "Null", "k", True),
    _if("or present", NO, {}, "Null", "k", "false"),
    _if("an ARN, segment by segment", YES, {"aws:principalarn": (ANN.arn,)},
         "ArnLike", "aws:PrincipalArn", "arn:aws:iam::*:user/a*"),
    _if("in its region's own partition", YES, {"aws:principalarn": (ANN.arn,)},
        "ArnEquals", "aws:PrincipalArn", ANN.arn.replace("aws", "aws-cn")),
    _if("in any partition but one", YES, {"aws:principalarn": (ANN.arn,)},
        "ArnLike", "aws:PrincipalArn", ANN.arn.replace("aws", "aws-*")),
    _if("of which none is left out", NO, {"aws:principalarn": (ANN.arn,)}, "ArnLike",
        "aws:PrincipalArn", "arn:aws:iam"),
    _if("whose star stays within", NO, {"aws:principalarn": (ANN.arn,)}, "ArnLike",
        "aws:PrincipalArn", "arn:aws:*:user/a*"),
    Case("all conditions must hold", ANN, NO,
         identity=(allow(Condition={"StringEquals": {"a": "1", "b": "2"}}),),
         says={"a": ("1",), "b": ("3",)}),
    _if("all values of a list", NO, {"aws:tagkeys": ("a", "c")}, "ForAllValues:StringEquals",
        "aws:TagKeys", "a", "b"),
    _if("an empty list fulfils that", YES, {}, "ForAllValues:StringEquals", "aws:TagKeys", "a",
        "b"),
    _if("any value of a list", YES, {"aws:tagkeys": ("a", "c")}, "ForAnyValue:StringEquals",
        "aws:TagKeys", "a", "b"),
    _if("an empty list does not fulfil that", NO, {}, "ForAnyValue:StringEquals", "aws:TagKeys",
        "a"),
    _if("nor its negation", NO, {}, "ForAnyValue:StringNotEquals", "aws:TagKeys", "a"),
    _if("unless IfExists forgives that", YES, {}, "ForAnyValue:StringEqualsIfExists",
        "aws:TagKeys", "a"),
    # -- a tag that was given twice, by keys that differ in case only ------------------------------
    _if("such a tag fulfils no condition of an allow", NO, ENV_TWICE, "StringEquals", ENV, "prod"),
    _if("not a negated one", NO, ENV_TWICE, "StringNotEquals", ENV, "y"),
    _if("nor Null", NO, ENV_TWICE, "Null", ENV, "false"),
    _if("nor as a variable", NO, {**ENV_TWICE, "k": ("x",)}, "StringLike", "k",
        "${aws:ResourceTag/Env, '*'}"),
    *(
        Case(f"it fulfils each of a deny: {operator}", ANN, BARRED, says={**ENV_TWICE, "k": ("x",)},
             identity=(allow(), deny(**when(operator, key, value))))
        for operator, key, value in (
            ("StringEquals", ENV, "prod"),
            ("StringEquals", ENV, "x"),
            ("StringNotEquals", ENV, "prod"),
            ("ForAllValues:StringEquals", ENV, "prod"),
            ("StringEqualsIfExists", ENV, "prod"),
            ("Null", ENV, "true"),
            ("StringEquals", "k", "${aws:ResourceTag/Env}"),
        )
    ),
    Case("but a deny's other conditions count", ANN, YES, says=ENV_TWICE,
         identity=(allow(), deny(Condition={"StringEquals": {ENV: "prod", "k": "1"}}))),
    Case("a variable of it in a resource of an allow fits nothing", ANN, NO, says=ENV_TWICE,
         identity=(allow(resource="arn:aws:sqs:*:*:${aws:resourcetag/ENV, 'orders'}"),)),
    Case("and is left out by nothing", ANN, NO, says=ENV_TWICE,
         identity=(_not_resource("arn:aws:sqs:*:*:${aws:ResourceTag/Env}"),)),
    Case("in one of a deny it fits anything", ANN, BARRED, says=ENV_TWICE,
         identity=(allow(), deny(resource="arn:aws:sqs:*:*:${aws:ResourceTag/Env}"))),
    _if("keys of tags are a list", YES, {"aws:tagkeys": ("Env", "env")}, "ForAllValues:StringLike",
        "aws:TagKeys", "?nv"),
    # -- variables ---------------------------------------------------------------------------------
    Case("a variable in a resource", ANN, YES,
         identity=(allow(resource="arn:aws:sqs:*:*:${aws:username}-*"),),
         says=SAYS_ANN, resource=f"arn:aws:sqs:us-east-1:{HOME}:ann-1"),
    Case("for another user", ANN, NO,
         identity=(allow(resource="arn:aws:sqs:*:*:${aws:username}-*"),),
         says=SAYS_ANN, resource=f"arn:aws:sqs:us-east-1:{HOME}:bob-1"),
    Case("that the request does not say", ANN, NO,
         identity=(allow(resource="arn:aws:sqs:*:*:${aws:username}"),)),
    Case("with a default", ANN, YES,
         identity=(allow(resource="arn:aws:sqs:*:*:${aws:username, 'orders'}"),)),
    Case("a value brings no wildcard", ANN, NO,
         identity=(allow(resource="arn:aws:sqs:*:*:${aws:username}"),),
         says={"aws:username": ("*",)}),
    Case("a star that means itself", ANN, NO, identity=(allow(resource="arn:aws:sqs:*:*:${*}"),)),
    _if("a variable in a condition", YES,
        {"aws:username": ("ann",), "aws:resourcetag/owner": ("ann",)},
         "StringEquals", "aws:ResourceTag/owner", "${aws:username}"),
    Case("the old version knows no variables", ANN, NO,
         identity=(allow(**when("StringEquals", "k", "${aws:username}")),),
         says={"aws:username": ("ann",), "k": ("ann",)}, version="2008-10-17"),
)  # fmt: skip
