package strictjson

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

type inner struct {
	Count int    `json:"count"`
	Side  string `json:"side" for:"a"`
}

type outer struct {
	Text    string            `json:"text,omitempty"`
	Switch  string            `json:"switch" bool:"on,off"`
	Truth   bool              `json:"truth"`
	Large   int64             `json:"large"`
	Inner   inner             `json:"inner"`
	List    []inner           `json:"list"`
	Words   []string          `json:"words"`
	Map     map[string]string `json:"map"`
	Free    map[string]any    `json:"free"`
	Raw     *Value            `json:"raw"`
	Ignored string
}

func decode(t *testing.T, text string, o Options) (outer, []string) {
	t.Helper()
	var to outer
	var texts []string
	for _, p := range Decode(testkit.Value(Parse([]byte(text)))(t), "", &to, o) {
		texts = append(texts, p.String())
	}
	return to, texts
}

func TestDecode(t *testing.T) {
	text := `{"text":"a","switch":true,"truth":true,"large":9007199254740993,"inner":{"count":-2,"side":"b"},"list":[{"count":1},{}],
	"words":["a",null],"map":{"k":"v","n":null},"free":{"n":1e3,"l":[true,"x",null,{}]},"raw":[1]}`
	got, problems := decode(t, text, Options{For: "a"})
	if len(problems) > 0 || got.Raw == nil || got.Raw.Items[0].Text != "1" {
		t.Fatalf("problems %v, raw %+v", problems, got.Raw)
	}
	got.Raw = nil
	testkit.Diff(t, "decoded", outer{
		Text: "a", Switch: "on", Truth: true, Large: 9007199254740993, Inner: inner{Count: -2, Side: "b"}, List: []inner{{Count: 1}, {}},
		Words: []string{"a", ""}, Map: map[string]string{"k": "v", "n": ""},
		Free: map[string]any{"n": json.Number("1e3"), "l": []any{true, "x", nil, map[string]any{}}},
	}, got)
}

func TestProblems(t *testing.T) {
	for text, want := range map[string]string{
		"[]":                                "line 1, column 1: it is a list, want an object",
		`{"text":1}`:                        "line 1, column 9: text: it is a number, want a string; put it in quotes",
		`{"text":[]}`:                       "line 1, column 9: text: it is a list, want a string",
		`{"switch":1}`:                      `line 1, column 11: switch: it is a number, want "on" or "off"`,
		`{"truth":"yes"}`:                   "line 1, column 10: truth: it is a string, want true or false",
		`{"inner":{"count":"1"}}`:           "line 1, column 19: inner.count: it is a string, want a whole number",
		`{"inner":{"count":4294967296}}`:    "line 1, column 19: inner.count: 4294967296 is not a whole number of 32 bits",
		`{"large":1.5}`:                     "line 1, column 10: large: 1.5 is not a whole number of 64 bits",
		`{"list":[null]}`:                   "line 1, column 10: list[0]: it is null, want an object",
		`{"list":{}}`:                       "line 1, column 9: list: it is an object, want a list",
		`{"words":"a"}`:                     "line 1, column 10: words: it is a string, want a list of strings",
		`{"map":{"a/b":1}}`:                 `line 1, column 15: map["a/b"]: it is a number, want a string; put it in quotes`,
		`{"map":1}`:                         "line 1, column 8: map: it is a number, want an object of strings",
		"{\n\"größe\": {}, \"txt\":1}":      "line 2, column 1: [\"größe\"]: there is no key \"größe\"; it is ignored. Known keys: text, switch, truth, large, inner, list, words, map, free, raw\nline 2, column 14: txt: there is no key \"txt\"; did you mean \"text\"? The key is ignored",
		`{"TEXT":"a"}`:                      `line 1, column 2: TEXT: there is no key "TEXT"; did you mean "text"? The key is ignored`,
		`{"inner":{"side":"a"}}`:            `line 1, column 11: inner.side: there is no key "side"; it is ignored. Known keys: count`,
		`{"Ignored":"a","text":"a"}`:        `line 1, column 2: Ignored: there is no key "Ignored"; it is ignored. Known keys: text, switch, truth, large, inner, list, words, map, free, raw`,
		"{\"truth\":true,\n\"truth\":null}": `line 2, column 1: truth: the key "truth" is given twice, also in line 1: only the last counts`,
		`{"text":null,"inner":null,"list":null,"map":null,"truth":null}`: "",
	} {
		got, problems := decode(t, text, Options{})
		if strings.Join(problems, "\n") != want {
			t.Errorf("%s\nsays %s\nwant %s", text, strings.Join(problems, "\n"), want)
		}
		if strings.HasPrefix(text, "{\"truth\":true") && got.Truth {
			t.Error("of equal keys the first counts")
		}
	}
}

func TestFoldCase(t *testing.T) {
	var seen []string
	got, problems := decode(t, `{"TEXT":"a","Text":"b","Inner":{"COUNT":3}}`, Options{FoldCase: true, Field: func(key, path string, v *Value) {
		seen = append(seen, key+"="+path)
	}})
	if len(problems) != 1 || !strings.Contains(problems[0], `Text: the key "Text" is given twice`) || got.Text != "b" || got.Inner.Count != 3 {
		t.Errorf("%+v, problems %v", got, problems)
	}
	testkit.Diff(t, "fields", []string{"text=Text", "count=Inner.COUNT", "inner=Inner"}, seen)
}

func TestSyntaxErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "line 1, column 1: not JSON: unexpected end of JSON input",
		"{\n  \"a\": [":       "line 2, column 9: not JSON: unexpected end of JSON input",
		"{}\n\n  {}":          "line 3, column 3: not JSON: invalid character '{' after top-level value",
		"{\"a\": [\n  1,\n]}": "line 3, column 1: not JSON: invalid character ']' looking for beginning of value; JSON has no comma before a closing bracket: remove it",
		`{"größe": x}`:        "line 1, column 11: not JSON: invalid character 'x' looking for beginning of value",
	} {
		_, err := Parse([]byte(text))
		if _, ok := errors.AsType[*Problem](err); !ok || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "null", `{"a":[1,"b",{"c":null}]}`, "[\n\t1e9 , {}]\n", `{"größe":"\ud800"}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := Parse(text)
		if (err == nil) != json.Valid(text) {
			t.Fatalf("error %v", err)
		}
		if err != nil {
			return
		}
		var want any
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		testkit.Must(t, d.Decode(&want))
		testkit.Diff(t, "value", want, v.any())
		var to outer
		Decode(v, "", &to, Options{FoldCase: true, For: "a"})
	})
}
