"""Messages of errors that plans and certificates store."""

from tidemill.spark.messages import short


def test_a_message_has_no_query_plan_no_line_breaks_and_no_password() -> None:
    error = ValueError("cannot read\n postgresql://ann:s3cret@db/shop;\n'Project [id]\n+- Relation")
    assert short(error) == "cannot read postgresql://ann:***@db/shop"


def test_a_password_is_removed_before_a_long_message_is_cut() -> None:
    url = "postgresql://ann:" + "s3cret" * 20 + "@db/shop"
    assert "s3cret" not in short(ValueError("x" * 560 + " " + url))
