package kmsg

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// A message that this process writes is read, after those before and none
// twice.
func TestRead(t *testing.T) {
	text := fmt.Sprintf("cleat kmsg test %d", os.Getpid())
	l := testkit.Value(Open())(t)
	defer l.Close()
	testkit.Must(t, l.SkipAll())
	f := testkit.Open(os.OpenFile(path, os.O_WRONLY, 0))(t)
	testkit.Value(f.WriteString("<7>" + text + "\n"))(t)
	count := func(all []Record) (n int) {
		for i, r := range all {
			if i > 0 && r.Seq <= all[i-1].Seq {
				t.Errorf("record %d follows record %d", r.Seq, all[i-1].Seq)
			}
			if strings.Contains(r.Text, text) {
				n++
			}
		}
		return n
	}
	if n := count(testkit.Value(l.Read())(t)); n != 1 {
		t.Errorf("the new message was read %d times, want once", n)
	}
	if n := count(testkit.Value(l.Read())(t)); n != 0 {
		t.Errorf("the message was read again")
	}
	whole := testkit.Value(Open())(t)
	defer whole.Close()
	if n := count(testkit.Value(whole.Read())(t)); n != 1 {
		t.Errorf("the whole log has the message %d times, want once", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("6,339,5140900,-;nvme nvme0: new ctrl: NQN \"nqn.x\"\n SUBSYSTEM=nvme\n"))
	f.Add([]byte("4,1,2;x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parse(data)
		if err == nil && strings.Contains(r.Text, "\n") {
			t.Errorf("the text has two lines: %q", r.Text)
		}
	})
}
