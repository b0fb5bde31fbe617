package inventory

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestErrors(t *testing.T) {
	named := func(name string) string {
		return `{"resourceList":[{"resourceName":"` + name + `","selectors":[{"vendors":["8086"]}]}]}`
	}
	const name = "resourceList[0].resourceName: "
	for what, c := range map[string]struct{ text, says string }{
		"empty":                     {"", "line 1, column 1: not JSON"},
		"too long":                  {strings.Repeat(" ", MaxConfigSize) + "{}", "want at most 1048576"},
		"a list":                    {"[]", "line 1, column 1: the document is a list, want an object"},
		"null":                      {"null", "the document is null, want an object"},
		"list is an object":         {`{"resourceList":{}}`, "line 1, column 17: resourceList: it is an object, want a list"},
		"resource is null":          {`{"resourceList":[null]}`, "resourceList[0]: it is null, want an object"},
		"resource is a string":      {`{"resourceList":["a"]}`, "resourceList[0]: it is a string, want an object"},
		"no name":                   {`{"resourceList":[{"selectors":[{"vendors":["8086"]}]}]}`, name + "it is missing"},
		"name is a number":          {`{"resourceList":[{"resourceName":5}]}`, name + "it is a number, want a string"},
		"name with a space":         {named("a b"), name + `"a b" is not a valid resource name, want letters, digits, - and _`},
		"empty name":                {named(""), name + `"" is not a valid resource name`},
		"prefix is a boolean":       {testResource(`,"resourcePrefix":true`), "resourceList[0].resourcePrefix: it is a boolean, want a string"},
		"the same name":             {`{"resourceList":[{"resourceName":"a","selectors":{}},{"resourceName":"a","resourcePrefix":"intel.com","selectors":{}}]}`, `resourceList[1].resourceName: "intel.com/a" is the name of resourceList[0] already`},
		"device type":               {testResource(`,"deviceType":"netdevice"`), `resourceList[0].deviceType: there is no device type "netdevice"; did you mean "netDevice"?`},
		"another device type":       {testResource(`,"deviceType":"gpu"`), "want one of netDevice, accelerator, auxNetDevice"},
		"device type near":          {testResource(`,"deviceType":"acelerator"`), `did you mean "accelerator"?`},
		"topology is a string":      {testResource(`,"excludeTopology":"true"`), "resourceList[0].excludeTopology: it is a string, want true or false"},
		"information is a list":     {testResource(`,"additionalInfo":[]`), "resourceList[0].additionalInfo: it is a list, want an object"},
		"information is a string":   {testResource(`,"additionalInfo":{"*":"a"}`), `resourceList[0].additionalInfo["*"]: it is a string, want an object of strings`},
		"information holds numbers": {testResource(`,"additionalInfo":{"*":{"a":1}}`), `resourceList[0].additionalInfo["*"]["a"]: it is a number, want a string`},
		"selector is null":          {testResource(`,"selectors":[{"vendors":["8086"]},null]`), "resourceList[0].selectors[1]: it is null, want an object"},
		"RDMA and vDPA":             {testSelector(`"isRdma":true,"vdpaType":"vhost"`), `isRdma and vdpaType "vhost" exclude each other`},
		"no auxiliary type":         {testResource(`,"deviceType":"auxNetDevice","selectors":[{"vendors":["15b3"]}]`), "resourceList[0].selectors[0]: auxTypes is missing"},
		"no auxiliary selectors":    {testResource(`,"deviceType":"auxNetDevice"`), "resourceList[0].selectors: there are no selectors"},
		"another auxiliary type":    {testResource(`,"deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf","eth"]}]`), `resourceList[0].selectors[0].auxTypes[1]: there is no auxiliary type "eth", want "sf"`},
	} {
		t.Run(what, func(t *testing.T) {
			got, _, err := ParseConfig([]byte(c.text), ParseOptions{})
			if _, typed := errors.AsType[*strictjson.Problem](err); !typed || !strings.Contains(err.Error(), c.says) {
				t.Errorf("want an *Error with %q, got %v", c.says, err)
			}
			testkit.Diff(t, "an error comes with a config", Config{}, got)
		})
	}
}

func TestAllErrorsInOneRun(t *testing.T) {
	text := `{"resourceList": [
  {"resourceName": "a b", "selectors": {"vendors": ["8086"]}},
  {"resourceName": "c", "deviceType": "gpu"},
  {"resourceName": "d", "selectors": {"pfName": ["eth0"]}},
  {"resourceName": "e", "excludeTopology": 1}
]}`
	_, warnings, err := ParseConfig([]byte(text), ParseOptions{})
	var places []int
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			if e, ok := errors.AsType[*strictjson.Problem](one); ok {
				places = append(places, e.Line)
			}
		}
	}
	if diff := cmp.Diff([]int{2, 3, 5}, places); diff != "" {
		t.Errorf("lines of errors (-want +got):\n%s\n%v", diff, err)
	}
	if w, ok := find(warnings, strictjson.UnknownKey, "resourceList[2].selectors.pfName"); !ok || w.Line != 4 || w.Column != 39 || w.Nearest != "pfNames" || w.Key != "pfName" {
		t.Errorf("warnings %+v", warnings)
	}
	var texts []string
	for _, w := range warnings {
		texts = append(texts, w.String())
	}
	want := []string{
		"line 4, column 38: resourceList[2].selectors: the selector has no filter: it takes every device of type netDevice that no selector before it took",
		`line 4, column 39: resourceList[2].selectors.pfName: there is no key "pfName"; did you mean "pfNames"? The key is ignored`,
	}
	testkit.Diff(t, "warnings", want, texts)
}

func TestDroppedResource(t *testing.T) {
	c, warnings, err := ParseConfig([]byte(`{"resourceList":[
	{"resourceName":"a","selectors":{"vendors":"8086"}},
	{"resourceName":"a","selectors":{"vendors":["8086"]}}]}`), ParseOptions{})
	if err != nil || len(warnings) != 1 || warnings[0].Kind != DroppedResource {
		t.Fatalf("error %v, warnings %v", err, warnings)
	}
	if len(c.Resources) != 1 || c.Resources[0].Index != 1 || len(c.Resources[0].Selectors) != 1 {
		t.Errorf("%+v", c)
	}
}

func TestRefusedResource(t *testing.T) {
	for refused, says := range map[string]string{
		`"resourceName":"_a"`:                                        `the kubelet refuses "intel.com/_a": want at most 63 characters`,
		`"resourceName":"a-"`:                                        `the kubelet refuses "intel.com/a-": want at most 63 characters`,
		`"resourceName":"` + strings.Repeat("a", 64) + `"`:           "at most 63 characters",
		`"resourceName":"a","resourcePrefix":"../x"`:                 `its prefix "../x" is not a lower-case domain`,
		`"resourceName":"a","resourcePrefix":"Intel.com"`:            `its prefix "Intel.com" is not a lower-case domain`,
		`"resourceName":"a","resourcePrefix":"x.kubernetes.io"`:      "kubernetes.io and requests. are reserved",
		`"resourceName":"a","resourcePrefix":"requests.example.com"`: "kubernetes.io and requests. are reserved",
	} {
		text := []byte(`{"resourceList":[{` + refused + `,"selectors":{"vendors":["8086"]}},{"resourceName":"b","selectors":{"vendors":["8086"]}}]}`)
		c, warnings, err := ParseConfig(text, ParseOptions{})
		if err != nil || len(warnings) != 1 || warnings[0].Kind != DroppedResource || !strings.Contains(warnings[0].String(), says) ||
			!strings.HasPrefix(warnings[0].Path, "resourceList[0].") || !strings.Contains(warnings[0].Text, "the resource is left out") {
			t.Errorf("%s: error %v, warnings %v; want one warning with %q", refused, err, warnings, says)
		}
		if len(c.Resources) != 1 || c.Resources[0].Name != "b" || c.Resources[0].Index != 1 {
			t.Errorf("%s: %+v; want the other resource alone", refused, c)
		}
		if _, _, err := ParseConfig(text, ParseOptions{Strict: true}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: in strict mode %v; want %q", refused, err, says)
		}
	}
}

func TestLastDuplicateKeyWins(t *testing.T) {
	c, warnings, err := ParseConfig([]byte(testSelector(`"vendors":["8086"],"VENDORS":["15b3"],"pfNames":["eth0"]`)), ParseOptions{})
	if err != nil || len(warnings) != 1 {
		t.Fatalf("error %v, warnings %v", err, warnings)
	}
	testkit.Diff(t, "vendors", []string{"15b3"}, c.Resources[0].Selectors[0].Vendors)
}

// ParseConfig terminates; accepted text is valid and consistent; strict mode
// accepts no more; positions are inside the text.
func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{
		"", "{}", "null", `{"":0}`, `{"a\n.b":{}}`, "{}{}", `{"resourceList":[{}]}`, testSelector(``), testSelector(`"pfNames":["eth0#0-3,5","eth0#x"],"isRdma":true`),
		testResource(`,"deviceType":"auxNetDevice","selectors":{"auxTypes":["sf"]},"additionalInfo":{"*":{"a":"b"}}`),
		testResource(`,"selectors":[{"vendors":"8086"}]`), testSelector(`"vendors":["8086"],"Vendors":null,"größe":1e9`),
		"{\n\"resourceList\":\n[{\"resourceName\":\"a\",\"resourcePrefix\":\"b.c\",\"selectors\":null,}]}",
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, strict bool) {
		c, warnings, err := ParseConfig(text, ParseOptions{Strict: strict})
		lines := strings.Count(string(text), "\n") + 1
		for _, w := range warnings {
			if w.Line < 1 || w.Line > lines || w.Column < 1 || w.Path == "" || w.Text == "" || (strict && isMistake(w.Kind)) {
				t.Errorf("warning %+v", w)
			}
		}
		again, _, errAgain := ParseConfig(text, ParseOptions{Strict: strict})
		if diff := cmp.Diff(c, again); diff != "" || (err == nil) != (errAgain == nil) {
			t.Errorf("results differ: %v, %v\n%s", err, errAgain, diff)
		}
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Errorf("%q was accepted", text)
		}
		if lenient, _, err := ParseConfig(text, ParseOptions{}); err != nil || cmp.Diff(c, lenient) != "" {
			t.Errorf("accepted in strict mode, but otherwise %v", err)
		}
		sound(t, c)
	})
}

func sound(t *testing.T, c Config) {
	names := map[string]bool{}
	for _, r := range c.Resources {
		if names[r.FullName()] || len(r.Selectors) == 0 || r.Name == "" || strings.ContainsAny(r.FullName(), " \x00") || strings.Contains(r.FullName(), "..") || strings.Count(r.FullName(), "/") != 1 {
			t.Errorf("resource %+v", r)
		}
		names[r.FullName()] = true
		for _, s := range r.Selectors {
			if s.RDMA && s.VDPAType != "" || r.Type == AuxNetDevice && len(s.AuxTypes) == 0 {
				t.Errorf("selector %+v", s)
			}
		}
	}
}

// Up to the first invalid part.
func FuzzParsePFItem(f *testing.F) {
	for _, text := range []string{"eth0", "eth0#0-3,5", "#", "a#1,-", "a#9-1", "a#1#2", "0000:3b:00.1#+1,2-2", "a#--"} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, index int) {
		i, err := ParsePFItem(text)
		parts := strings.Split(text, "#")
		want, wantBad := len(parts) == 1, len(parts) > 2
		if len(parts) == 2 {
			for _, entry := range strings.Split(parts[1], ",") {
				ends := strings.Split(entry, "-")
				low, e1 := strconv.Atoi(ends[0])
				high, e2 := strconv.Atoi(ends[len(ends)-1])
				if len(ends) > 2 || e1 != nil || e2 != nil {
					wantBad = true
					break
				}
				want = want || low <= index && index <= high
			}
		}
		if i.Name != parts[0] || i.Has(index) != want || (err != nil) != wantBad {
			t.Errorf("ParsePFItem(%q) = %+v, %v; has %d: want %v, error: %v", text, i, err, index, want, wantBad)
		}
	})
}
