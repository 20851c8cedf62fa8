"""The grammar of CQL, and the parse tables made from it.

Owns the one text that says what CQL is. `build_table()` turns it into LALR(1) tables with the parser
library; the tables are kept beside it in `grammar_table` so that a starting node neither loads the
library nor builds anything (building costs some 150 ms, loading some 2 ms). A new statement is a rule
here plus a handler named after the rule in `reductions` or `reductions_ddl`; then run

    python -m lockstep.cql.parse.grammar > lockstep/cql/parse/grammar_table.py

Invariant: a test compares `grammar_table` with this text. In the text a quoted string is a keyword or a
sign and leaves no value behind; upper-case names are tokens of `parser`; `-> name` names the handler.
"""

from __future__ import annotations

import base64
import json
import textwrap
import zlib
from typing import Any

GRAMMAR = r"""
start: statement ";"*

?statement: use | select | insert | update | delete | batch | truncate | describe
    | create_keyspace | alter_keyspace | drop_keyspace
    | create_table | drop_table
    | create_type | alter_type | drop_type
    | alter_table_add | alter_table_drop | alter_table_rename | alter_table_with | alter_table_type
    | create_index | drop_index | create_view | alter_view | drop_view
    | create_function | drop_function | create_aggregate | drop_aggregate
    | create_role | alter_role | drop_role | create_user | alter_user | drop_user | list_roles | list_users
    | grant_role | revoke_role | grant_permission | revoke_permission | list_permissions

// Names
name: NAME | QUOTED_NAME
table_name: name | name "." name
?type: plain_type | STRING -> custom_type
plain_type: name | name "<" type_argument ("," type_argument)* ">"
    | "SET" "<" type ">" -> set_type
    | name "." name -> qualified_type
?type_argument: type | INTEGER -> type_dimension
_table: "TABLE" | "COLUMNFAMILY"
_keyspace: "KEYSPACE" | "SCHEMA"
if_not_exists: "IF" "NOT" "EXISTS"
if_exists: "IF" "EXISTS"

// Terms
?term: sum
?sum: product | sum "+" product -> add | sum "-" product -> subtract
?product: factor | product "*" factor -> multiply | product "/" factor -> divide
    | product "%" factor -> modulo
?factor: simple | "-" factor -> negate
?simple: literal | bind | collection | call | "(" plain_type ")" simple -> type_hint
    | "CAST" "(" simple "AS" type ")" -> cast
literal: STRING -> string | INTEGER -> integer | FLOAT -> float | HEX -> hex | UUID -> uuid
    | DURATION -> duration | "TRUE" -> true | "FALSE" -> false | "NULL" -> null
    | "NAN" -> nan | "INFINITY" -> infinity
bind: "?" -> bind_anonymous | ":" name -> bind_named
collection: "[" _terms? "]" -> list_literal
    | "{" "}" -> empty_braces
    | "{" _terms "}" -> set_literal
    | "{" map_entry ("," map_entry)* "}" -> map_literal
    | "{" field_entry ("," field_entry)* "}" -> user_literal
    | "(" _terms ")" -> tuple_literal
map_entry: term ":" term
field_entry: name ":" term
_terms: term ("," term)*
call: function_name "(" _terms? ")"
function_name: name | name "." name | "TOKEN" -> function_token

// SELECT
select: "SELECT" json? distinct? selection "FROM" table_name where? clause*
json: "JSON"
distinct: "DISTINCT"
selection: "*" -> select_all | selector ("," selector)* -> select_some
selector: expression ("AS" name)?
?expression: select_product | expression "+" select_product -> add
    | expression "-" select_product -> subtract
?select_product: select_factor | select_product "*" select_factor -> multiply
    | select_product "/" select_factor -> divide | select_product "%" select_factor -> modulo
?select_factor: select_simple | "-" select_factor -> negate
?select_simple: name -> select_column | literal | bind
    | name accessor+ -> select_access
    | function_name "(" "*" ")" -> select_call_all
    | function_call
    | function_call accessor+ -> select_call_access
    | "CAST" "(" expression "AS" type ")" -> select_cast
    | "[" _expressions? "]" -> list_literal
    | "{" "}" -> empty_braces
    | "{" _expressions "}" -> set_literal
    | "{" select_entry ("," select_entry)* "}" -> map_literal
    | "(" name ")" -> select_nested
    | "(" name accessor+ ")" -> select_nested_access
    | "(" _expressions ")" -> tuple_literal
    | "(" name ")" select_simple -> select_hint_named
    | "(" hint_type ")" select_simple -> select_hint
    | "(" name accessor+ ")" select_simple -> select_hint_qualified
// `(word)` in front of an expression is a type, else the column of that name.
?hint_type: name "<" type_argument ("," type_argument)* ">" -> plain_type
    | "SET" "<" type ">" -> set_type
_expressions: expression ("," expression)*
select_entry: expression ":" expression
function_call: function_name "(" _expressions? ")"
accessor: "." name -> by_field
    | "[" term "]" -> by_element
    | "[" term ".." term "]" -> by_slice
    | "[" term ".." "]" -> by_slice_from
    | "[" ".." term "]" -> by_slice_up_to
?clause: "ORDER" "BY" ordering ("," ordering)* -> order_by
    | "GROUP" "BY" grouping ("," grouping)* -> group_by
    | "PER" "PARTITION" "LIMIT" amount -> per_partition_limit
    | "LIMIT" amount -> limit
    | "ALLOW" "FILTERING" -> allow_filtering
    | "BYPASS" "CACHE" -> bypass_cache
    | using
?grouping: name -> select_column | function_call
ordering: name -> ascending | name "ASC" -> ascending | name "DESC" -> descending
?amount: INTEGER -> integer | bind

where: "WHERE" relation ("AND" relation)*
?relation: name operator term -> compare
    | name "IN" in_values -> compare_in
    | name "CONTAINS" term -> contains
    | name "CONTAINS" "KEY" term -> contains_key
    | name "[" term "]" operator term -> compare_element
    | name "IS" "NOT" "NULL" -> is_not_null
    | name "LIKE" term -> like
    | "TOKEN" "(" names ")" operator term -> compare_token
    | "(" names ")" operator term -> compare_names
    | "(" names ")" "IN" in_values -> compare_names_in
    | "(" relation ")"
names: name ("," name)*
in_values: "(" _terms? ")" -> in_terms | bind -> in_bind
operator: "=" -> op_eq | "<" -> op_lt | "<=" -> op_le | ">" -> op_gt | ">=" -> op_ge | "!=" -> op_ne

// Changes
insert: "INSERT" "INTO" table_name "(" names ")" "VALUES" "(" _terms ")" if_not_exists? using?
    | "INSERT" "INTO" table_name "JSON" json_value json_default? if_not_exists? using? -> insert_json
json_default: "DEFAULT" "NULL" -> json_default_null | "DEFAULT" "UNSET" -> json_default_unset
?json_value: STRING -> string | bind
using: "USING" attribute ("AND" attribute)*
attribute: "TTL" amount -> using_ttl | "TIMESTAMP" amount -> using_timestamp
    | "TIMEOUT" timeout_value -> using_timeout
?timeout_value: DURATION -> duration | INTEGER -> integer | bind
update: "UPDATE" table_name using? "SET" assignment ("," assignment)* where conditions?
assignment: name "=" term -> assign
    | name "=" name "+" term -> assign_append
    | name "=" name "-" term -> assign_remove
    | name "=" name INTEGER -> assign_shift
    | name "=" sum "+" name -> assign_prepend
    | name "+=" term -> assign_plus
    | name "-=" term -> assign_minus
    | name "[" term "]" "=" term -> assign_element
    | name "." name "=" term -> assign_field
conditions: if_exists | "IF" condition ("AND" condition)* -> if_conditions
?condition: name operator term -> compare
    | name "IN" in_values -> compare_in
    | name "CONTAINS" term -> contains
    | name "CONTAINS" "KEY" term -> contains_key
    | name "[" term "]" operator term -> compare_element
    | name "[" term "]" "IN" in_values -> compare_element_in
    | name "." name operator term -> compare_field
    | name "." name "IN" in_values -> compare_field_in
delete: "DELETE" deletions? "FROM" table_name using? where conditions?
deletions: deletion ("," deletion)*
deletion: name | name "[" term "]" -> deletion_element | name "." name -> deletion_field
batch: "BEGIN" batch_kind? "BATCH" using? (batched ";"*)* "APPLY" "BATCH"
?batched: insert | update | delete
batch_kind: "UNLOGGED" -> batch_unlogged | "COUNTER" -> batch_counter
truncate: "TRUNCATE" _table? table_name
use: "USE" name

// Schema
create_keyspace: "CREATE" _keyspace if_not_exists? name properties
alter_keyspace: "ALTER" _keyspace if_exists? name properties
drop_keyspace: "DROP" _keyspace if_exists? name
properties: "WITH" property ("AND" property)*
?property: name "=" property_value -> option
    | "CLUSTERING" "ORDER" "BY" "(" ordering ("," ordering)* ")" -> clustering_order
    | "COMPACT" "STORAGE" -> compact_storage
?property_value: literal | collection | name -> property_word
create_table: "CREATE" _table if_not_exists? table_name "(" definition ("," definition?)* ")" properties?
?definition: name type column_mark* -> column_definition
    | "PRIMARY" "KEY" "(" key_part ("," name)* ")" -> primary_key
column_mark: "STATIC" -> mark_static | "PRIMARY" "KEY" -> mark_primary
key_part: name | "(" name ("," name)* ")"
drop_table: "DROP" _table if_exists? table_name
_alter_table: "ALTER" _table if_exists? table_name
alter_table_add: _alter_table "ADD" if_not_exists? (added_column | "(" added_column ("," added_column)* ")")
added_column: name type static?
static: "STATIC"
alter_table_drop: _alter_table "DROP" if_exists? (names | "(" names ")") using?
alter_table_rename: _alter_table "RENAME" if_exists? renaming ("AND" renaming)*
renaming: name "TO" name
alter_table_with: _alter_table properties
alter_table_type: _alter_table "ALTER" name "TYPE" type
create_type: "CREATE" "TYPE" if_not_exists? table_name "(" type_field ("," type_field?)* ")"
type_field: name type
alter_type: _alter_type "ADD" if_not_exists? type_field -> alter_type_add
    | _alter_type "RENAME" if_exists? renaming ("AND" renaming)* -> alter_type_rename
    | _alter_type "ALTER" name "TYPE" type -> alter_type_type
_alter_type: "ALTER" "TYPE" if_exists? table_name
drop_type: "DROP" "TYPE" if_exists? table_name

// Indexes and views
create_index: "CREATE" custom? "INDEX" if_not_exists? index_name? _on_index using_class? properties?
_on_index: "ON" table_name _index_targets
custom: "CUSTOM"
index_name: name
_index_targets: "(" index_target ("," index_target)* ")"
index_target: name | name "(" name ")" | "ENTRIES" "(" name ")" -> index_entries
    | "FULL" "(" name ")" -> index_full
using_class: "USING" STRING
drop_index: "DROP" "INDEX" if_exists? table_name
create_view: "CREATE" "MATERIALIZED" "VIEW" if_not_exists? table_name "AS" _view_select view_key? properties?
_view_select: "SELECT" selection "FROM" table_name where?
view_key: "PRIMARY" "KEY" "(" key_part ("," name)* ")" -> primary_key
alter_view: "ALTER" "MATERIALIZED" "VIEW" if_exists? table_name properties
drop_view: "DROP" "MATERIALIZED" "VIEW" if_exists? table_name

// Functions and aggregates
create_function: "CREATE" or_replace? "FUNCTION" if_not_exists? table_name "(" _arguments? ")" _function_body
_function_body: null_input "RETURNS" returned "LANGUAGE" language "AS" STRING
or_replace: "OR" "REPLACE"
_arguments: argument ("," argument)*
argument: name type
null_input: "CALLED" "ON" "NULL" "INPUT" -> called_on_null
    | "RETURNS" "NULL" "ON" "NULL" "INPUT" -> null_on_null
returned: type
language: name
drop_function: "DROP" "FUNCTION" if_exists? table_name signature?
signature: "(" _types? ")"
_types: type ("," type)*
create_aggregate: "CREATE" or_replace? "AGGREGATE" if_not_exists? table_name signature _aggregate_body
_aggregate_body: "SFUNC" state_function "STYPE" returned final_function? initial_state?
state_function: name
final_function: "FINALFUNC" name
initial_state: "INITCOND" term
drop_aggregate: "DROP" "AGGREGATE" if_exists? table_name signature?

// Roles and permissions
role_name: name | STRING
create_role: "CREATE" "ROLE" if_not_exists? role_name _role_options?
alter_role: "ALTER" "ROLE" if_exists? role_name _role_options?
drop_role: "DROP" "ROLE" if_exists? role_name
_role_options: "WITH" role_option ("AND" role_option)*
?role_option: "PASSWORD" "=" STRING -> role_password
    | "HASHED" "PASSWORD" "=" STRING -> role_hashed_password
    | "OPTIONS" "=" collection -> role_custom
    | "SUPERUSER" "=" boolean -> role_superuser
    | "LOGIN" "=" boolean -> role_login
    | "ACCESS" "TO" "ALL" "DATACENTERS" -> role_all_datacenters
    | "ACCESS" "TO" "DATACENTERS" collection -> role_datacenters
boolean: "TRUE" -> true | "FALSE" -> false
create_user: "CREATE" "USER" if_not_exists? role_name user_password? user_superuser?
alter_user: "ALTER" "USER" if_exists? role_name user_password? user_superuser?
user_password: "WITH" "PASSWORD" STRING -> role_password
    | "WITH" "HASHED" "PASSWORD" STRING -> role_hashed_password
user_superuser: "SUPERUSER" -> user_is_superuser | "NOSUPERUSER" -> user_is_no_superuser
drop_user: "DROP" "USER" if_exists? role_name
list_roles: "LIST" "ROLES" of_role? norecursive?
list_users: "LIST" "USERS"
of_role: "OF" role_name
norecursive: "NORECURSIVE"
grant_role: "GRANT" role_name "TO" role_name
revoke_role: "REVOKE" role_name "FROM" role_name
grant_permission: "GRANT" _permissions "ON" resource "TO" role_name
revoke_permission: "REVOKE" _permissions "ON" resource "FROM" role_name
list_permissions: "LIST" _permissions on_resource? of_role? norecursive?
_permissions: _permission ("," _permission)*
_permission: permission | permission "PERMISSION" | permission "PERMISSIONS"
permission: name -> permission_word | "ALL" -> permission_all | "CREATE" -> permission_create
    | "ALTER" -> permission_alter | "DROP" -> permission_drop | "SELECT" -> permission_select
    | "MODIFY" -> permission_modify | "AUTHORIZE" -> permission_authorize
    | "DESCRIBE" -> permission_describe | "EXECUTE" -> permission_execute
on_resource: "ON" resource
resource: "ALL" "KEYSPACES" -> resource_all_keyspaces
    | "ALL" "TABLES" "IN" "KEYSPACE" name -> resource_all_tables
    | "ALL" "ROLES" -> resource_all_roles
    | "ALL" "FUNCTIONS" -> resource_all_functions
    | "ALL" "FUNCTIONS" "IN" "KEYSPACE" name -> resource_functions_in
    | "ALL" "MBEANS" -> resource_all_mbeans
    | "KEYSPACE" name -> resource_keyspace
    | _table? table_name -> resource_table
    | "ROLE" role_name -> resource_role
    | "FUNCTION" table_name signature -> resource_function
    | "MBEAN" STRING -> resource_mbean | "MBEANS" STRING -> resource_mbeans

// DESCRIBE
describe: _describe "CLUSTER" -> describe_cluster
    | _describe "SCHEMA" with_internals? -> describe_schema
    | _describe "FULL" "SCHEMA" with_internals? -> describe_full_schema
    | _describe "KEYSPACES" -> describe_keyspaces
    | _describe "TABLES" -> describe_tables
    | _describe "COLUMNFAMILIES" -> describe_tables
    | _describe "TYPES" -> describe_types
    | _describe "FUNCTIONS" -> describe_functions
    | _describe "AGGREGATES" -> describe_aggregates
    | _describe only? "KEYSPACE" name? with_internals? -> describe_keyspace
    | _describe _table table_name with_internals? -> describe_table
    | _describe "TYPE" table_name -> describe_type
    | _describe "FUNCTION" table_name -> describe_function
    | _describe "AGGREGATE" table_name -> describe_aggregate
    | _describe "INDEX" table_name -> describe_index
    | _describe "MATERIALIZED" "VIEW" table_name -> describe_view
    | _describe table_name with_internals? -> describe_any
only: "ONLY"
with_internals: "WITH" "INTERNALS"
_describe: "DESCRIBE" | "DESC"

%declare NAME QUOTED_NAME STRING INTEGER FLOAT HEX UUID DURATION
"""

#: Words that cannot be names unless quoted.
RESERVED = frozenset(
    """
    add allow alter and apply asc authorize batch begin by columnfamily create delete desc describe drop
    entries execute from full grant if in index infinity insert into is keyspace limit materialized modify
    nan norecursive not null of on or order primary rename replace revoke schema select set table to token
    truncate unlogged update use using view where with
    """.split()  # noqa: SIM905
)


def build_table() -> dict[str, Any]:
    """Tables of plain values.

    `literals`: keyword or sign (lower case) -> terminal. `states`: per state, symbol -> next state, or
    -1 - rule for a reduction. `rules`: [origin, length, picks, handler] where picks lists what the
    handler receives: an index into the right side, with 1 behind it when that symbol's values are
    spliced in; handler "" passes the values on as a list, and "?" the single value or (handler after it).
    """
    from lark import Lark
    from lark.lexer import Lexer

    class TablesOnly(Lexer):
        def __init__(self, configuration: Any) -> None:
            del configuration

        def lex(self, lexer_state: Any, parser_state: Any) -> Any:
            raise AssertionError("only the tables of this parser are used")

    lark = Lark(GRAMMAR, parser="lalr", lexer=TablesOnly, maybe_placeholders=False)
    parse_table = lark.parser.parser._parse_table
    rules = sorted(lark.rules, key=repr)
    numbers = {rule: number for number, rule in enumerate(rules)}
    order = _visit_order(parse_table)
    renumbered = {state: number for number, state in enumerate(order)}
    states = []
    for state in order:
        row = {}
        for symbol, (action, argument) in sorted(parse_table.states[state].items()):
            row[str(symbol)] = renumbered[argument] if _shifts(action) else -1 - numbers[argument]
        states.append(row)
    return {
        "literals": {
            terminal.pattern.value.lower(): terminal.name
            for terminal in sorted(lark.terminals, key=lambda terminal: terminal.name)
            if terminal.pattern is not None
        },
        "start": renumbered[parse_table.start_states["start"]],
        "end": renumbered[parse_table.end_states["start"]],
        "states": states,
        "rules": [_rule_row(rule) for rule in rules],
    }


def _shifts(action: Any) -> bool:
    return "Shift" in str(action)


def _visit_order(parse_table: Any) -> list[Any]:
    """States as first reached from the start by sorted symbols: the library's own numbers vary."""
    order = [parse_table.start_states["start"]]
    seen = set(order)
    for state in order:
        for _, (action, argument) in sorted(parse_table.states[state].items()):
            if _shifts(action) and argument not in seen:
                seen.add(argument)
                order.append(argument)
    return order


def _rule_row(rule: Any) -> list[Any]:
    picks = []
    for index, symbol in enumerate(rule.expansion):
        if symbol.is_term and symbol.filter_out:
            continue
        picks.append([index, 1 if not symbol.is_term and symbol.name.startswith("_") else 0])
    origin = str(rule.origin.name)
    if rule.alias:
        handler = str(rule.alias)
    elif origin.startswith("_"):
        handler = ""
    elif rule.options.expand1:
        handler = "?"
    else:
        handler = origin
    return [origin, len(rule.expansion), picks, handler]


def packed(table: dict[str, Any]) -> str:
    """Base64 of the compressed JSON text of a table."""
    text = json.dumps(table, separators=(",", ":"), sort_keys=True).encode()
    return base64.b64encode(zlib.compress(text, 9)).decode()


def unpacked(text: str) -> dict[str, Any]:
    """The table that `packed` was given."""
    table: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return table


def module_text(table: dict[str, Any]) -> str:
    """Source of the module `grammar_table`."""
    lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(packed(table), 100))
    return (
        '"""Parse tables of CQL, generated from `grammar` by `python -m lockstep.cql.parse.grammar`."""\n\n'
        f"PACKED = (\n{lines}\n)\n"
    )


if __name__ == "__main__":
    print(module_text(build_table()), end="")
