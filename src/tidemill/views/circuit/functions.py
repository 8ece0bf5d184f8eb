"""Spark's functions by name: which of them aggregate, generate rows, read the clock or are not deterministic.

The lists classify functions; they do not say what a function computes. A function that is in no list and was
not declared by the user is unknown. It could be an aggregate or nondeterministic, so a query that calls it is
not split into operators but recomputed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidemill.views.aggregates.registry import AGGREGATES


def words(text: str) -> frozenset[str]:
    """Split a text into a set of words."""
    return frozenset(text.split())


WINDOW_ONLY = words("""
    counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
    """)

GENERATORS = words("""
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack variant_explode
    variant_explode_outer
    """)

# The current time: Spark has one value per query, a view one per step.
CLOCK = words("""
    curdate current_date current_time current_timestamp localtime localtimestamp now
    """)

# A different value for every row or every run, for the same input (aes_encrypt uses a random vector).
RANDOM = words("""
    aes_encrypt
    input_file_block_length input_file_block_start input_file_name monotonically_increasing_id rand randn
    random randstr shuffle spark_partition_id tablesample uniform uuid
    """)

# The result depends on the session or the user; reflect can call any method.
SESSION = words("""
    current_catalog current_database current_path current_schema current_user java_method python_worker_logs
    reflect session_user try_reflect user version
    """)

# The names of the arguments become part of the value, but columns of a circuit have no names. (This is true
# of `struct` too; there the compiler writes the names into the text, see tidemill.views.sql.stage.)
NAME_SENSITIVE = words("arrays_zip")

# Special forms that look like functions.
GROUPING = words("grouping grouping_id")
# Time windows, with the reason why a query stays SQL text that uses them in an unsupported place. `window`
# returns a row for every window that contains the time.
TIME_WINDOW = "window"
SESSION_WINDOW = "session_window"
TIME_WINDOWS: Mapping[str, str] = {
    "session_window": "session_window in an unsupported place, or without another key or a fixed gap",
    "window": "the time window window() in an unsupported place",
    "window_time": "window_time needs the mark that Spark puts on the column of a time window",
}

SCALARS = words("""
    abs acos acosh add_months aes_decrypt aggregate and approx_top_k_estimate array array_append
    array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max
    array_min array_position array_prepend array_remove array_repeat array_size array_sort array_union
    arrays_overlap ascii asin asinh assert_true atan atan2 atanh base64 between bigint bin binary bit_count
    bit_get bit_length bitmap_bit_position bitmap_bucket_number bitmap_count boolean bround btrim
    cardinality case cast cbrt ceil ceiling char char_length character_length chr coalesce collate collation
    concat concat_ws contains conv convert_timezone cos cosh cot crc32 csc current_timezone date date_add
    date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day
    dayname dayofmonth dayofweek dayofyear decimal decode degrees div double e element_at elt encode
    endswith equal_null exists exp expm1 extract factorial filter find_in_set flatten float floor forall
    format_number format_string from_avro from_base32 from_csv from_json from_protobuf from_unixtime
    from_utc_timestamp from_xml get get_json_object getbit greatest hash hex hll_sketch_estimate hll_union
    hmac hour hypot if ifnull ilike in initcap instr int is_valid_utf8 is_valid_variant is_variant_null
    isnan isnotnull isnull jaro_winkler_similarity json_array_length json_object_keys
    kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float kll_sketch_get_quantile_bigint
    kll_sketch_get_quantile_double kll_sketch_get_quantile_float kll_sketch_get_rank_bigint
    kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint kll_sketch_merge_double
    kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
    kll_sketch_to_string_float last_day lcase least left len length levenshtein like ln locate log log10
    log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_time make_timestamp
    make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key
    map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask md5 minute
    mod month monthname months_between named_struct nanvl negative next_day not nullif nullifzero nvl nvl2
    octet_length or overlay parse_json parse_url pi pmod position positive pow power printf quarter quote
    radians raise_error reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr
    regexp_like regexp_replace regexp_substr repeat replace reverse right rint rlike round rpad rtrim
    schema_of_avro schema_of_csv schema_of_json schema_of_variant schema_of_xml sec second sentences
    sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint
    sort_array soundex space split split_part sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid
    st_srid startswith str_to_map string struct substr substring substring_index tan tanh theta_difference
    theta_intersection theta_sketch_estimate theta_union time time_bucket time_diff time_from_micros
    time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp
    timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds timestampadd timestampdiff tinyint
    to_avro to_base32 to_binary to_char to_csv to_date to_json to_number to_protobuf to_time to_timestamp
    to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml
    transform transform_keys transform_values translate trim trunc try_add try_aes_decrypt try_cast
    try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz
    try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract try_to_binary
    try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
    try_variant_array_append try_variant_get try_variant_insert try_variant_set tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
    tuple_intersection_theta_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
    tuple_sketch_theta_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_nanos
    unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 variant_array_append
    variant_delete variant_get variant_insert variant_set variant_strip_nulls vector_cosine_similarity
    vector_inner_product vector_l2_distance vector_norm vector_normalize weekday weekofyear when
    width_bucket xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short
    xpath_string xxhash64 year zeroifnull zip_with
    """)

# Scalar functions that raise no error for any value of the type they take (see total_expressions).
TOTAL = words("""
    coalesce concat equal_null ifnull in isnotnull isnull length lower ltrim nullif nvl nvl2 rtrim trim upper
    """)

# Scalar functions that return NULL if any argument is NULL.
NULL_FOR_NULL = words("""
    abs ceil ceiling contains date_add date_sub datediff day dayofmonth dayofweek dayofyear div endswith
    floor hour instr length levenshtein lower ltrim minute mod month negative pmod positive quarter
    regexp_like rlike round rtrim second sign signum sqrt startswith substr substring trim upper weekday
    weekofyear year
    """)

KNOWN = (
    SCALARS
    | WINDOW_ONLY
    | GENERATORS
    | CLOCK
    | RANDOM
    | SESSION
    | NAME_SENSITIVE
    | GROUPING
    | TIME_WINDOWS.keys()
)


@dataclass(frozen=True)
class UserFunction:
    """A function that the user registered in Spark and declared with the view.

    `digest` identifies its code: when the digest changes, the results are computed again. A function that is
    not declared deterministic is treated like rand().
    """

    name: str
    digest: str = ""
    deterministic: bool = False
    aggregate: bool = False


class ViewFunctions:
    """The functions of one view: Spark's functions, and those that the user declared.

    A declared function hides Spark's function of the same name.
    """

    def __init__(self, declared: Iterable[UserFunction] = ()) -> None:
        self.declared: Mapping[str, UserFunction] = {f.name.lower(): f for f in declared}

    def is_known(self, name: str) -> bool:
        return name in self.declared or name in AGGREGATES or name in KNOWN

    def is_aggregate(self, name: str) -> bool:
        declared = self.declared.get(name)
        return declared.aggregate if declared else name in AGGREGATES

    def is_random(self, name: str) -> bool:
        """Return whether the function may return different values for the same input."""
        declared = self.declared.get(name)
        return not declared.deterministic if declared else name in RANDOM or name in SESSION

    def is_total(self, name: str) -> bool:
        """Return whether the function never raises an error, for any value."""
        return name not in self.declared and name in TOTAL

    def digests(self) -> dict[str, str]:
        """Return the digests of the declared functions, for the ids of operators."""
        return {name: f.digest for name, f in self.declared.items()}
