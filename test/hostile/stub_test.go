//go:build linux

package hostile

import "testing"

func testEngine(t *testing.T)  {}
func testSockets(t *testing.T) {}
func testFiles(t *testing.T)   {}
func testStore(t *testing.T)   {}
func testModel(t *testing.T)   {}
func testPeers(t *testing.T)   {}
func testProxy(t *testing.T)   {}
func testKilled(t *testing.T)  {}
