package idstream

import (
	"strings"
	"testing"
)

// Buffers that a very large event needed are dropped with the next event.
func TestLargeEventIsNotKept(t *testing.T) {
	s := NewScanner()
	for _, n := range []int{500_000, 1} {
		data := []byte(strings.Repeat("7,", n-1) + "7")
		s.begin(data)
		if ids, err := s.Tail(data, n); err != nil || len(ids) != n {
			t.Fatalf("%d ids, %v", len(ids), err)
		}
	}
	if cap(s.ids) > 1<<10 {
		t.Errorf("room for %d ids is kept", cap(s.ids))
	}
}

// The words of an error are found in each of the forms that engines have.
func TestMessage(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"no \"such\" model","type":"NotFoundError","param":null,"code":404}}`: `no "such" model`,
		`{"object":"error","message":"as it was","code":400}`:                                      "as it was",
		`{"error":"words"}`:                       "",
		`{"error":{"message":7}}`:                 "",
		`{"message":"a","error":{"message":"b"}}`: "b",
		`<html>`: "",
		``:       "",
	} {
		if got := Message([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
