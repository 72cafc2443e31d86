package tokenizer

import (
	"slices"
	"strings"
)

// trie holds a set of strings by their bytes. It is immutable.
type trie struct {
	nodes []trieNode
	edges []trieEdge
	root  [256]int32 // edges of the root by byte, or -1
}

// trieNode has its edges in trie.edges, sorted by byte.
type trieNode struct {
	edges, count int32
	value        int32 // of the string that ends here, or -1
}

type trieEdge struct {
	label byte
	node  int32
}

// newTrie builds a trie of non-empty strings whose values are their indexes. If strings
// are equal, the first is found.
func newTrie(keys []string) *trie {
	t := &trie{}
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	t.build(order, keys, 0)
	for b := range t.root {
		t.root[b] = -1
	}
	for _, e := range t.edges[t.nodes[0].edges : t.nodes[0].edges+t.nodes[0].count] {
		t.root[e.label] = e.node
	}
	return t
}

// build adds the node for the sorted keys in order, which agree in their first
// depth bytes.
func (t *trie) build(order []int, keys []string, depth int) int32 {
	at := int32(len(t.nodes))
	t.nodes = append(t.nodes, trieNode{value: -1})
	for len(order) > 0 && len(keys[order[0]]) == depth {
		if t.nodes[at].value < 0 {
			t.nodes[at].value = int32(order[0])
		}
		order = order[1:]
	}
	var edges []trieEdge
	for len(order) > 0 {
		label, n := keys[order[0]][depth], 0
		for n < len(order) && keys[order[n]][depth] == label {
			n++
		}
		edges = append(edges, trieEdge{label, t.build(order[:n], keys, depth+1)})
		order = order[n:]
	}
	t.nodes[at].edges, t.nodes[at].count = int32(len(t.edges)), int32(len(edges))
	t.edges = append(t.edges, edges...)
	return at
}

// step returns the node that a byte leads to from a node, or -1.
func (t *trie) step(node int32, b byte) int32 {
	if node == 0 {
		return t.root[b]
	}
	n := &t.nodes[node]
	edges := t.edges[n.edges : n.edges+n.count]
	for len(edges) > 8 {
		if half := len(edges) / 2; edges[half].label <= b {
			edges = edges[half:]
		} else {
			edges = edges[:half]
		}
	}
	for _, e := range edges {
		if e.label == b {
			return e.node
		}
	}
	return -1
}
