"""Lists the metrics that an engine's source registers: by which class, name, type, labels
(* are those of all), and the conditions under which it does. Nothing of it is run: it is
parsed.

python3 names.py FILE CLASS..."""

import ast
import sys


def kind_of(call):
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    for kind in ("gauge", "counter", "histogram", "summary"):
        if kind in name.lower():
            return kind
    return ""


def labels_of(value):
    """The labels that are written out, "*" where the common ones are among them."""
    if value is None:
        return []
    found, common = [], False
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.Name) and node.id in ("labelnames", "labels"):
            common = True
    return (["*"] if common else []) + sorted(found)


def metrics(path, classes):
    with open(path) as f:
        tree = ast.parse(f.read())

    def visit(node, conditions, inside):
        if isinstance(node, ast.ClassDef):
            inside = node.name
        if isinstance(node, ast.Call) and inside in classes:
            given = {k.arg: k.value for k in node.keywords}
            name = given.get("name")
            if kind_of(node) and isinstance(name, ast.Constant) and ":" in str(name.value):
                full = name.value
                if kind_of(node) == "counter" and not full.endswith("_total"):
                    full += "_total"  # as prometheus_client tells it
                yield inside, full, kind_of(node), labels_of(given.get("labelnames")), conditions
        if isinstance(node, ast.If):
            for child in node.body:
                yield from visit(child, conditions + [ast.unparse(node.test)], inside)
            for child in node.orelse:
                yield from visit(child, conditions + ["not " + ast.unparse(node.test)], inside)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, conditions, inside)

    yield from visit(tree, [], "")


for where, name, kind, labels, conditions in metrics(sys.argv[1], sys.argv[2:]):
    print(where, name, kind, ",".join(labels) or "-", " and ".join(conditions) or "-", sep="\t")
