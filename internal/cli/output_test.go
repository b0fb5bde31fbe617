package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type listed struct {
	ID   string `json:"id"`
	Size int64  `json:"size"`
}

func TestPrint(t *testing.T) {
	table := Table{
		Header: []string{"ID", "SIZE", "NOTE"},
		Rows:   [][]string{{"vol-1", "1 GiB", "für Ü"}, {"volume-two", "", "x\x1b[31m\tred\n"}, {"v3", "2 B", `say "hi"`}},
	}
	document := []listed{{"vol-1", 1 << 62}}
	for format, want := range map[Format]string{
		FormatTable: "ID           SIZE    NOTE\nvol-1        1 GiB   für Ü\nvolume-two   -       x\\x1b[31m\\tred\\n\nv3           2 B     say \"hi\"\n",
		"":          "ID           SIZE    NOTE\nvol-1        1 GiB   für Ü\nvolume-two   -       x\\x1b[31m\\tred\\n\nv3           2 B     say \"hi\"\n",
		FormatJSON:  "[\n  {\n    \"id\": \"vol-1\",\n    \"size\": 4611686018427387904\n  }\n]\n",
		FormatYAML:  "- id: vol-1\n  size: 4611686018427387904\n",
	} {
		var out bytes.Buffer
		if err := Print(&out, format, table, document); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
	var out bytes.Buffer
	if err := Print(&out, "xml", table, nil); err == nil {
		t.Error("xml is written")
	}
	for _, f := range []Format{FormatJSON, FormatYAML} {
		if err := Print(&out, f, table, func() {}); err == nil {
			t.Errorf("%s: a function is written", f)
		}
	}
	for _, f := range []Format{FormatTable, FormatJSON, FormatYAML} {
		if err := Print(broken{}, f, table, document); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

var errBroken = errors.New("broken pipe")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestFormatAsAFlag(t *testing.T) {
	f := FormatTable
	for _, word := range []string{"json", "yaml", "table"} {
		if err := f.Set(word); err != nil || f.String() != word {
			t.Errorf("%s: got %s, %v", word, f, err)
		}
	}
	if err := f.Set("jsn"); err == nil || !strings.Contains(err.Error(), `mean "json"`) || f != FormatTable {
		t.Errorf("got %s, %v", f, err)
	}
	if f.Type() != "table|json|yaml" {
		t.Error(f.Type())
	}
}
