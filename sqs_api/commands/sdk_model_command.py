"""`holdfast sdk-model`: let boto3 and the AWS CLI know Holdfast's own actions."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sqs_api.commands.command_options import Failed
from sqs_api.protocol.transact_shapes import API_VERSION, sdk_model


@click.command("sdk-model")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of models; by default ~/.aws/models, where boto3 and the AWS CLI look.",
)
def sdk_model_command(folder: Path | None) -> None:
    """Write the model with which `boto3.client("holdfast")` and `aws holdfast` work."""
    place = (folder or Path.home() / ".aws" / "models") / "holdfast" / API_VERSION
    path = place / "service-2.json"
    try:
        place.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(sdk_model(), indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise Failed(f"cannot write {error.filename or path}: {error.strerror}") from error
    click.echo(str(path))
