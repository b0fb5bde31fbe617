package register

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Told hears each word of a host that counts: not one about an earlier socket.
func TestTold(t *testing.T) {
	var mu sync.Mutex
	var words []string
	c := config(t.TempDir())
	c.Told = func(registered bool, text string) {
		mu.Lock()
		defer mu.Unlock()
		words = append(words, fmt.Sprintf("%t %s", registered, text))
	}
	r := serve(t, c)
	r.reaches(Waiting)
	h := dial(t, r.socket)
	if err := h.tell(t.Context(), true, ""); err != nil { // nobody asked at this socket
		t.Fatal(err)
	}
	if _, err := h.ask(t.Context()); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxText+1)
	for _, word := range []struct {
		yes  bool
		text string
	}{{false, "no"}, {false, "no"}, {true, ""}, {false, long}} {
		if err := h.tell(t.Context(), word.yes, word.text); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"false no", "false no", "true ", "false " + long[:maxText]}; !slices.Equal(words, want) {
		t.Errorf("told %.80q, want %.80q", words, want)
	}
}
