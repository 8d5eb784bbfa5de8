"""Workflow files: every mistake is reported at its place."""

from time import process_time
from timeit import timeit

import pytest
from yaml_bench import QUEUES, node_problems, parse_nodes, problems

from dagmaster.authoring.yaml import parse_workflow
from dagmaster.model.problems import InvalidWorkflow


def test_a_mistake_is_reported_with_file_line_and_column() -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflow("workflow_id: w\nnodes:\n  clean:\n    hander: h\n", file="flows/a.yaml", queues=QUEUES)
    assert str(caught.value) == (
        "flows/a.yaml:4:5: error: unknown key 'hander' in node 'clean'; did you mean 'handler'?"
    )


def test_invalid_limits_of_inputs_are_reported() -> None:
    assert problems(
        """
        workflow_id: w
        inputs:
          a: {type: string, enum: red}
          b: {type: integer, enum: [1, two]}
          c: {type: number, minimum: 3, maximum: 1}
          d: {type: string, maximum: 3}
          e: {type: string, format: datum}
          f: {type: integer, format: date}
          h: {type: string, format: file, extensions: tif}
          i: {type: string, extensions: [.tif]}
          g: {type: string, enum: [x, y], default: z}
        nodes:
          a: {handler: echo}
        """
    ) == [
        "3:27: 'enum' of input 'a' must be a list of the allowed values",
        "4:3: input 'b': each value of its 'enum' must be an integer, not a string ('two')",
        "5:3: input 'c': its minimum (3) is above its maximum (1)",
        "6:3: input 'd': 'minimum' and 'maximum' are for numbers, and its type is string",
        "7:29: unknown format 'datum' of input 'e'; formats are date, time, date-time, uuid, uri, crs, file",
        "8:3: input 'f': 'format' is for strings, and its type is integer",
        "9:47: 'extensions' of input 'h' must be a list such as [.tif, .tiff]",
        "10:3: input 'i': 'extensions' are for inputs with `format: file`",
        "11:44: the default of input 'g' must be one of 'x', 'y', not 'z'",
    ]


def test_all_mistakes_are_reported_once_in_order() -> None:
    assert problems(
        """
        workflow_id: bad
        vesion: 2
        inputs:
          message: strin
          count: {type: int, default: 3}
          size: {type: integer, default: big}
        nodes:
          START: {type: start, next: ech}
          echo:
            type: task
            hander: echo
            params: {msg: "{{ inputs.mesage }}"}
            timeout_seconds: 0
            retry: {max_atempts: 4, backoff: slow}
            next: END
          cond:
            type: conditional
            condition: {{ inputs.message }}
            on_true: echo
            on_false: [END, nowhere]
          fo:
            type: fan_out
            source: "{{ nodes.echo.output.items }}"
            child_node: tile
            next: fi
          tile:
            handler: t
            params: {a: "{{ item }}", b: "{{ fan_out.idx }}"}
          fi: {type: fan_in, aggregation: conct, source_node: tile, next: END}
          END: {type: end}
        """
    ) == [
        "2:1: unknown key 'vesion' in the workflow; did you mean 'version'?",
        "4:12: unknown type 'strin' of input 'message'; did you mean 'string'?",
        "5:17: unknown type 'int' of input 'count'; did you mean 'integer'?",
        "6:34: the default of input 'size' must be an integer, not a string ('big')",
        "8:30: node 'START' names an unknown node 'ech'; did you mean 'echo'?",
        "11:5: unknown key 'hander' in node 'echo'; did you mean 'handler'?",
        "12:19: inputs.mesage refers to an unknown input; did you mean 'message'?",
        "13:22: 'timeout_seconds' of node 'echo': input should be greater than or equal to 1, not 0",
        "14:13: unknown key 'max_atempts' in 'retry' of node 'echo'; did you mean 'max_attempts'?",
        "14:38: 'retry.backoff' of node 'echo': input should be 'fixed', 'linear' or 'exponential', not 'slow'",
        '18:17: a key must be a string; a value that begins with an expression must be in quotes: "{{ ... }}"',
        "20:21: node 'cond' names an unknown node 'nowhere'",
        "28:34: fan_out.idx is unknown: fan_out has item, index, total",
        "29:35: unknown aggregation 'conct' in node 'fi'; did you mean 'concat'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: the file is empty"),
        ("# nothing\n", "1:1: the file is empty"),
        ("- a\n- b\n", "1:1: the file must be a mapping with 'workflow_id' and 'nodes'"),
        ("just text", "1:1: the file must be a mapping with 'workflow_id' and 'nodes'"),
        (
            "a: [1, 2\nb: 3\n",
            "2:2: not readable as YAML: while parsing a flow sequence",
        ),
        ("a:\n\tb: 1\n", "2:1: not readable as YAML: a tab is used for indentation; YAML allows only spaces"),
        ("a: 1\n---\nb: 2\n", "2:1: not readable as YAML: expected a single document in the stream but found another"),
        ("a: {{ inputs.x }} > 5\n", "1:21: not readable as YAML: while scanning a block scalar"),
        ("a: > 5\n", "1:6: not readable as YAML: while scanning a block scalar"),
        ("a: \x01\n", "1: not readable as YAML: unacceptable character"),
        ("[" * 100, "1:51: not readable as YAML: the file is nested more than 50 levels deep"),
        ("a: *nope\n", "1:4: not readable as YAML: found undefined alias"),
        ("a: \ud800\n", "the file cannot be encoded"),
        ("x" * 1_100_000, "the file has more than 1048576 characters"),
        ("a: &a [*a]\n", "1:4: the file has too many levels"),
        ("a: &a {<<: *a, b: 1}\n", "1:4: the file has too many levels"),
    ],
)
def test_invalid_files_are_reported(text: str, message: str) -> None:
    (problem,) = problems(text)
    assert problem.removeprefix("error: ").startswith(message)


def test_values_that_must_be_quoted_get_a_hint() -> None:
    assert problems("a: {{ inputs.x }} > 5\n")[0].endswith('must be in quotes: "{{ ... }}"')
    assert problems("a: > 5\n")[0].endswith("a value that begins with '>' must be in quotes")
    assert node_problems("a: {handler: h, params: {x: !=5}}")[0].endswith("begins with '!' must be in quotes")
    assert node_problems("a: {handler: h, params: {x: != 5}}")[0].endswith("begins with '!' must be in quotes")


def test_alias_expansion_is_limited() -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 10))
    reported: list[str] = []
    seconds = timeit(lambda: reported.extend(problems("l0: &l0 [x]\n" + levels)), number=1, timer=process_time)
    assert reported[0].endswith("the file has too many values")
    assert len(reported) == 1
    assert seconds < 10


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "!!python/object/apply:os.system [ls]",
            "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not supported",
        ),
        ("!!python/name:os.system x", "is not supported"),
        ("!custom {a: 1}", "the tag '!custom' is not supported"),
        ("!!binary aGk=", "is not supported"),
        ("!!set {a, b}", "is not supported"),
        ("!!int abc", "'abc' cannot be read as int"),
        (".nan", "'.nan' is not a number that JSON supports"),
        ("99999999999999999999", "is too large a number"),
        ('"\\0"', "contains a character that cannot be stored"),
        ('"\\ud800"', "haracter"),
        ("{a: 1, a: 2}", "the key 'a' is given twice, first on line 2"),
        ("{<<: 5}", "'<<' must name a mapping"),
        ("{[1]: 2}", "a key must be a string"),
    ],
)
def test_values_that_are_not_plain_data_are_refused(value: str, message: str) -> None:
    (problem,) = node_problems(f"a: {{handler: h, params: {{x: {value}}}}}")
    assert message in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: {a: {handler: h}}", "1:1: the workflow needs a 'workflow_id'"),
        ("workflow_id: w", "1:1: the workflow needs 'nodes'"),
        ("workflow_id: w\nnodes: {}", "2:8: the workflow needs 'nodes'"),
        ("workflow_id: w\nnodes: 5", "2:8: 'nodes' must be a mapping of ids to nodes"),
        ("workflow_id: w\nnodes: text", "2:8: 'nodes' must be a mapping of ids to nodes"),
        ("workflow_id: ''\nnodes: {a: {handler: h}}", "1:1: the workflow needs a 'workflow_id'"),
        ("workflow_id: [w]\nnodes: {a: {handler: h}}", "1:14: 'workflow_id' must be a string"),
        (
            f"workflow_id: {'w' * 65}\nnodes: {{a: {{handler: h}}}}",
            "1:14: 'workflow_id': string should have at most 64 characters",
        ),
        ("workflow_id: w\nversion: 1.5\nnodes: {a: {handler: h}}", "2:10: 'version' must be an integer"),
        ("workflow_id: w\nversion: '1.5'\nnodes: {a: {handler: h}}", "2:10: 'version' must be an integer"),
        ("workflow_id: w\nversion: one\nnodes: {a: {handler: h}}", "2:10: 'version' must be an integer"),
        ("workflow_id: w\nis_active: maybe\nnodes: {a: {handler: h}}", "2:12: 'is_active' must be true or false"),
        ("workflow_id: w\ninputs: [a]\nnodes: {a: {handler: h}}", "2:9: 'inputs' must be a mapping of names to types"),
        (
            "workflow_id: w\ninputs: {a: {typ: string}}\nnodes: {a: {handler: h}}",
            "2:14: unknown key 'typ' in input 'a'; did you mean 'type'?",
        ),
        (
            "workflow_id: w\ninputs: {a: wibble}\nnodes: {a: {handler: h}}",
            "2:13: unknown type 'wibble' of input 'a'; types are string,",
        ),
        (
            "workflow_id: w\ninputs: {a: {default: x, type: 5}}\nnodes: {a: {handler: h}}",
            "2:32: unknown type '5' of input 'a'",
        ),
        (
            "workflow_id: w\nglobals: 5\nnodes: {a: {handler: h}}",
            "2:10: 'globals' must be a mapping of names to values",
        ),
        (
            "workflow_id: w\ntags: [a]\nnodes: {a: {handler: h}}",
            "2:1: unknown key 'tags' in the workflow; known are workflow_id,",
        ),
        ("workflow_id: w\nnodes: [{task_type: h}]", "2:9: each node in the list must be a mapping with an 'id'"),
        ("workflow_id: w\nnodes: [text]", "2:9: each node in the list must be a mapping with an 'id'"),
        (
            "workflow_id: w\nnodes:\n- {id: a, handler: h}\n- {id: a, handler: h}",
            "4:8: the node id 'a' is used twice, first on line 3",
        ),
        (
            "workflow_id: w\nnodes:\n  a: {handler: h}\n  a: {handler: h}",
            "4:3: the key 'a' is given twice, first on line 3",
        ),
        ("workflow_id: w\nnodes: {a: {handler: h}}\nglobals: {x: '{{ oops'}", "3:14: the braces are never closed"),
    ],
)
def test_mistakes_in_the_header_give_one_problem(text: str, message: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {type: task}", "node 'a' needs a 'handler'"),
        ("a: {handler: ~}", "node 'a' needs a 'handler'"),
        ("a: {handler: ''}", "node 'a' needs a 'handler'"),
        ("a: {handler: h, next: ['']}", "a name in 'next' of node 'a' is empty"),
        ("a: {handler: h, next: [~]}", "a name in 'next' of node 'a' is empty"),
        ("a: {handler: [h]}", "the handler of node 'a' must be a string"),
        ("a: text", "node 'a' must be a mapping of keys to values"),
        ("a: [handler, h]", "node 'a' must be a mapping of keys to values"),
        ("a: {handler: h, params: [1]}", "'params' of node 'a' must be a mapping of names to values"),
        ("a: {handler: h, next: {b: c}}", "each name in 'next' of node 'a' must be a string"),
        (
            "b: {handler: h}, a: {handler: h, depends_on: {all: b}}",
            "unknown key 'all' in 'depends_on' of node 'a'; did you mean 'all_of'?",
        ),
        ("a: {handler: h, timeout_seconds: soon}", "'timeout_seconds' of node 'a': input should be a valid number"),
        (
            "a: {handler: h, timeout_seconds: 100000}",
            "'timeout_seconds' of node 'a': input should be less than or equal to 86400",
        ),
        ("a: {handler: h, retry: 3}", "'retry' of node 'a' must be a mapping of keys to values"),
        (
            "a: {handler: h, retry: {max_attempts: -1}}",
            "'retry.max_attempts' of node 'a': input should be greater than or equal to 0",
        ),
        (
            "a: {handler: h, retry: {initial_delay_seconds: 9, max_delay_seconds: 1}}",
            "'retry' of node 'a': initial_delay_seconds is larger than max_delay_seconds",
        ),
        (f"a: {{handler: {'h' * 129}}}", "'handler' of node 'a': string should have at most 128 characters"),
        ("a: {tpye: task, handler: h}", "unknown key 'tpye' in node 'a'; did you mean 'type'?"),
        ("a: {type: taks, handler: h}", "unknown type 'taks' of node 'a'; did you mean 'task'?"),
        ("a: {type: wibble, handler: h}", "unknown type 'wibble' of node 'a'; types are task,"),
        ("a: {type: fan_out_target, handler: h}", "unknown type 'fan_out_target' of node 'a'; it is not supported"),
        ("a: {handler: h, condition: x}", "'condition' does not belong to the task 'a'"),
        ("a: {handler: h, wibble: x}", "unknown key 'wibble' in node 'a'; known are type, description,"),
        ("a: {condition: true, on_true: END}", "node 'a' has no type; it looks like 'type: conditional'"),
        ("a: {source: [1], task: {handler: h}}", "node 'a' has no type; it looks like 'type: fan_out'"),
        ("a: {handler: h, next: a__1}", "node 'a' names an unknown node 'a__1'"),
        ("a__1: {handler: h}", "the node id 'a__1' is not allowed"),
        ("a: {handler: h, next: b}, b: {handler: h, next: a}", "these nodes wait for each other: a -> b -> a"),
        ("START: {type: start}, END: {type: end}, a: {handler: h, next: END}", "no node leads to 'a'"),
        ("a: {handler: h, params: {x: '{{ nodes.b.output }}'}}, b: {handler: h}", "nodes.b.output is not known here"),
    ],
)
def test_mistakes_in_tasks_give_one_problem(text: str, message: str) -> None:
    mistakes = node_problems(text)
    assert mistakes[0].startswith(message)
    assert len(mistakes) == 1 or (message.startswith("nothing leads") and len(mistakes) == 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("on_true: END", "the conditional 'c' needs a 'condition'"),
        ("condition: '', on_true: END", "the conditional 'c' needs a 'condition'"),
        ("condition: ' ', on_true: END", "the condition is empty"),
        (
            "condition_field: '', branches: [{condition: '> 1', next: END}], default: END",
            "node 'c' needs a 'condition_field'",
        ),
        ("condition: [a], on_true: END", "the condition of node 'c' must be a string"),
        ("condition: true", "no branch of the conditional 'c' leads anywhere"),
        ("condition: '{{ oops', on_true: END", "the braces are never closed"),
        ("condition: raster, on_true: END", "the condition 'raster' refers to nothing"),
        ("condition: true, on_tru: END", "unknown key 'on_tru' in node 'c'; did you mean 'on_true'?"),
        (
            "condition: true, branches: {maybe: END, true: END}",
            "a branch of node 'c' must be true or false, not 'maybe'",
        ),
        ("condition: true, branches: END", "the branches of node 'c' must be a list, or true and false"),
        (
            "condition: true, on_true: END, branches: {true: END}",
            "node 'c' has 'on_true' or 'on_false' as well as 'branches'",
        ),
        ("branches: [{condition: '> 1', next: END}, {default: true}]", "node 'c' needs a 'condition_field'"),
        (
            "condition_field: inputs.x, branches: [{condition: '> 1', next: END}]",
            "the conditional 'c' has no default branch",
        ),
        (
            "condition_field: inputs.x, branches: [{next: END}], default: END",
            "branch 1 of node 'c' needs a 'condition'",
        ),
        (
            "condition_field: inputs.x, branches: [{default: true, condition: '> 1', next: END}]",
            "branch 1 of node 'c' is the default and cannot have a condition",
        ),
        (
            "condition_field: inputs.x, branches: [{conditon: '> 1', next: END}], default: END",
            "unknown key 'conditon' in branch 1 of node 'c'; did you mean 'condition'?",
        ),
        ("condition_field: inputs.x, branches: [text], default: END", "branch 1 of node 'c' must be a mapping"),
        ("condition_field: size, branches: [{condition: '> 1', next: END}], default: END", "'size' is not a reference"),
        (
            "condition_field: inputs.x, branches: [{condition: '>', next: END}], default: END",
            "the condition '>' is not complete",
        ),
        (
            "condition_field: inputs.x, branches: [{condition: '> 1', next: END}], default: true",
            "the default of node 'c' must name a node; 'default: true' belongs in a branch",
        ),
    ],
)
def test_mistakes_in_conditionals_give_one_problem(fields: str, message: str) -> None:
    mistakes = node_problems(f"c: {{type: conditional, {fields}}}")
    assert len(mistakes) == 1, mistakes
    assert mistakes[0].startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f: {type: fan_out, task: {handler: h}}", "the fan_out 'f' needs a 'source': the list to process"),
        ("f: {type: fan_out, source: [1]}", "the fan_out 'f' needs either a 'task' or a 'child_node'"),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, child_node: t}, t: {handler: h}",
            "the fan_out 'f' needs either a 'task' or a 'child_node'",
        ),
        ("f: {type: fan_out, source: [1], task: {queue: q}}", "the task of node 'f' needs a 'handler'"),
        ("f: {type: fan_out, source: [1], task: h}", "the task of node 'f' must be a mapping with a 'handler'"),
        (
            "f: {type: fan_out, source: [1], task: {handlr: h}}",
            "unknown key 'handlr' in the task of node 'f'; did you mean 'handler'?",
        ),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, max_parallel: 0}",
            "'max_parallel' of node 'f': input should be greater",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: tt}, t: {handler: h}",
            "the child_node 'tt' of the fan_out 'f' is unknown",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: g}, g: {type: fan_out, source: [1], task: {handler: h}}",
            "the child_node 'g' of the fan_out 'f' is not a task",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: t, next: END}, t: {handler: h}, a: {handler: h, next: t}",
            "node 'a' cannot lead to 't', the child_node of 'f'",
        ),
        ("f: {type: fan_out, source: '{{ item }}', task: {handler: h}}", "item is only known in the task of a fan_out"),
        (
            "f: {type: fan_out, source: [1], child_node: t}, t: {handler: h, params: {x: '{{ oops'}}",
            "the braces are never closed",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: t}, t: {handler: h, next: nowhere}",
            "node 'f' names an unknown node 'nowhere'",
        ),
        (
            "f: {type: fan_out, source: '', task: {handler: h}}",
            "the fan_out 'f' needs a 'source': the list to process",
        ),
        ("i: {type: fan_in}", "no fan_out leads to the fan_in 'i'"),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, next: i}, i: {type: fan_in, source: f}",
            "'source' does not belong to the fan_in 'i'; did you mean 'source_node'?",
        ),
        (
            "f: {type: fan_out, source: [1], task: {handler: h}, next: i}, i: {type: fan_in, aggregation: zip}",
            "unknown aggregation 'zip' in node 'i'; known are collect,",
        ),
        (
            "f: {type: fan_out, source: [1], child_node: t, next: g}, t: {handler: h}, "
            "g: {type: fan_out, source: [1], child_node: t, next: i}, i: {type: fan_in, source_node: t}",
            "several fan_outs use 't': name one of f, g",
        ),
    ],
)
def test_mistakes_in_fan_outs_and_fan_ins_give_one_problem(text: str, message: str) -> None:
    mistakes = node_problems(text)
    assert len(mistakes) == 1, mistakes
    assert mistakes[0].startswith(message)


@pytest.mark.parametrize(
    "broken",
    [
        "next: {b: c}",
        "next: {{ x }}",
        "next: [{}]",
        "goes_to: b",
        "type: conditional, condition: true, branches: {{ x }}",
    ],
)
def test_an_invalid_link_is_not_also_reported_as_missing(broken: str) -> None:
    ends = "START: {type: start, next: a}, END: {type: end}, b: {handler: h, next: END}, "
    mistakes = node_problems(ends + f"a: {{handler: h, {broken}}}")
    errors = [message for message in mistakes if not message.startswith("warning")]
    assert len(errors) == 1, errors


def test_problems_of_a_merged_template_point_into_the_template() -> None:
    mistakes = problems(
        """
        workflow_id: w
        nodes:
          f: {type: fan_out, source: [1], child_node: t}
          t:
            handler: h
            params:
              x: "{{ inputs.nope }}"
            next: nowhere
        """
    )
    assert [message.split()[0] for message in mistakes] == ["7:10:", "8:11:"]


def test_keys_without_effect_are_warnings() -> None:
    text = "c: {type: conditional, condition: true, on_true: END, queue: q, timeout_seconds: 5}"
    assert node_problems(text) == [
        "warning: 'queue' has no effect on the conditional 'c'",
        "warning: 'timeout_seconds' has no effect on the conditional 'c'",
    ]
    assert parse_nodes(text)


def test_too_many_nodes_are_refused() -> None:
    text = "workflow_id: w\nnodes: [" + "1, " * 5001 + "]"
    assert problems(text) == ["2:8: a workflow may have at most 5000 nodes, not 5001"]
