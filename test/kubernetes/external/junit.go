package external

import (
	"encoding/xml"
	"fmt"
	"os"
)

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Seconds string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

func WriteJUnit(file string, results []Result) error {
	suite := junitSuite{Name: "Kubernetes external storage", Tests: len(results)}
	for _, r := range results {
		c := junitCase{Class: r.Driver, Name: r.Name, Seconds: fmt.Sprintf("%.3f", r.Seconds)}
		message := &junitMessage{Message: firstLine(r.Message), Text: r.Message + "\n" + r.Location}
		switch {
		case r.Failed():
			suite.Failures++
			message.Message = string(r.State) + ": " + message.Message
			c.Failure = message
		case r.Inapplicable():
			suite.Skipped++
			c.Skipped = message
		}
		suite.Cases = append(suite.Cases, c)
	}
	text, err := xml.MarshalIndent(suite, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte(xml.Header), text...), 0o644)
}
