package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// rules are the rules of words.yaml.
type rules struct {
	Rules []struct {
		Refuse  string `json:"refuse"`
		Write   string `json:"write"`
		Example string `json:"example"`

		re *regexp.Regexp
	} `json:"rules"`
	Exceptions []struct {
		Allow   string   `json:"allow"`
		Below   []string `json:"below"`
		Because string   `json:"because"`

		re *regexp.Regexp
	} `json:"exceptions"`
}

// finding is a place in a text that a rule refuses.
type finding struct {
	at          int // byte offset
	text, write string
}

func parseRules(data []byte) (*rules, error) {
	r := &rules{}
	if err := yaml.UnmarshalStrict(data, r); err != nil {
		return nil, err
	}
	var all error
	for i := range r.Rules {
		rule := &r.Rules[i]
		var err error
		if rule.re, err = wholeWords(rule.Refuse); err != nil {
			return nil, err
		}
		if rule.Write == "" || !rule.re.MatchString(rule.Example) {
			all = errors.Join(all, fmt.Errorf("rule %q needs a text to write instead, and an example that it refuses", rule.Refuse))
		}
	}
	for i := range r.Exceptions {
		e := &r.Exceptions[i]
		var err error
		if e.re, err = wholeWords(e.Allow); err != nil {
			return nil, err
		}
		if e.Because == "" {
			all = errors.Join(all, fmt.Errorf("exception %q needs a reason", e.Allow))
		}
	}
	return r, all
}

// wholeWords compiles an expression that matches whole words only, with any
// white space between them: a comment breaks its lines anywhere.
func wholeWords(expression string) (*regexp.Regexp, error) {
	return regexp.Compile(`(?i)\b(?:` + strings.ReplaceAll(expression, " ", `\s+`) + `)\b`)
}

// check returns what the rules refuse in a text of a file.
func (r *rules) check(file, text string) []finding {
	var all []finding
	for _, rule := range r.Rules {
		for _, at := range rule.re.FindAllStringIndex(text, -1) {
			if !r.allowed(file, text, at) {
				all = append(all, finding{at: at[0], text: strings.Join(strings.Fields(text[at[0]:at[1]]), " "), write: rule.Write})
			}
		}
	}
	return all
}

// allowed reports whether an exception covers a place in a text.
func (r *rules) allowed(file, text string, place []int) bool {
	for _, e := range r.Exceptions {
		if !below(file, e.Below) {
			continue
		}
		for _, at := range e.re.FindAllStringIndex(text, -1) {
			if at[0] <= place[0] && place[1] <= at[1] {
				return true
			}
		}
	}
	return false
}

func below(file string, paths []string) bool {
	for _, p := range paths {
		if file == p || strings.HasPrefix(file, strings.TrimSuffix(p, "/")+"/") {
			return true
		}
	}
	return len(paths) == 0
}
