package config

import (
	"slices"
	"strings"
	"testing"
)

func TestParseItem(t *testing.T) {
	for text, c := range map[string]struct {
		name string
		has  []int // of -1 to 12
		bad  bool
	}{
		"eth0":                        {"eth0", []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, false},
		"":                            {"", []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, false},
		"eth0#3":                      {"eth0", []int{3}, false},
		"netpf0#0,2-7,9":              {"netpf0", []int{0, 2, 3, 4, 5, 6, 7, 9}, false},
		"0000:86:00.0#0-1,3":          {"0000:86:00.0", []int{0, 1, 3}, false},
		"eth0#5-5":                    {"eth0", []int{5}, false},
		"eth0#7-3":                    {"eth0", nil, false},
		"eth0#+3,007":                 {"eth0", []int{3, 7}, false},
		"eth0#":                       {"eth0", nil, true},
		"eth0#0,":                     {"eth0", []int{0}, true},
		"eth0#0-3,x,5":                {"eth0", []int{0, 1, 2, 3}, true},
		"eth0#-1":                     {"eth0", nil, true},
		"eth0#1-":                     {"eth0", nil, true},
		"eth0#1-2-3":                  {"eth0", nil, true},
		"eth0#1--3":                   {"eth0", nil, true},
		"eth0#1 - 3":                  {"eth0", nil, true},
		"eth0#1#2":                    {"eth0", nil, true},
		"eth0##":                      {"eth0", nil, true},
		"#4":                          {"", []int{4}, false},
		"eth0#0-99999999999999999999": {"eth0", nil, true},
	} {
		i, err := ParseItem(text)
		var has []int
		for index := -1; index <= 12; index++ {
			if i.Has(index) {
				has = append(has, index)
			}
		}
		if i.Name != c.name || i.Text != text || !slices.Equal(has, c.has) || (err != nil) != c.bad {
			t.Errorf("%q: name %q, functions %v, error %v; want %q, %v, error: %v", text, i.Name, has, err, c.name, c.has, c.bad)
		}
		if err != nil && (!strings.Contains(err.Error(), c.name+"#0-3,5") || !strings.Contains(err.Error(), text)) {
			t.Errorf("%q: the error does not say what is wrong and what would be right: %v", text, err)
		}
	}
}
