package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/sriov/config"
)

// sriovConfigFile is where the image of the SR-IOV network device plugin has it.
const sriovConfigFile = "/etc/pcidp/config.json"

func newSriovValidateCommand() *cobra.Command {
	f := sriovConfig{}
	output := cli.FormatTable
	c := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check a config.json strictly, and name everything that is wrong with it",
		Long: `Reads the config.json of an SR-IOV device plugin and names each mistake with its
line, its column and what was probably meant. What the SR-IOV network device
plugin passes over in silence is a mistake here: a misspelt key lets a selector
match every device. What is right but may surprise is a warning.

FILE is --config-file by default, and - is standard input. It may be the manifest
of a ConfigMap too: its key config.json is checked, without one all its keys, as
the SR-IOV network operator names them after nodes.

With a mistake the command fails. Whether the devices are there is another
question: cleat sriov explain.`,
		Example: `  cleat sriov validate config.json
  cleat sriov validate configmap.yaml
  kubectl -n kube-system get configmap sriovdp-config -o yaml | cleat sriov validate -
  cleat sriov validate config.json -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("config-file") {
				return errors.New("FILE and --config-file both say what to check: give one of them")
			}
			if err := f.bind(); err != nil {
				return err
			}
			if len(args) == 1 { // stronger than the environment
				f.file = args[0]
			}
			return f.validate(cmd.InOrStdin(), cmd.OutOrStdout(), output)
		},
	}
	f.add(c)
	c.Flags().VarP(&output, "output", "o", "table, json or yaml")
	return c
}

// sriovFinding is a mistake or a warning.
type sriovFinding struct {
	Kind    config.Kind `json:"kind,omitempty"` // none: the plugin would not start
	Path    string      `json:"path,omitempty"`
	Line    int         `json:"line"`
	Column  int         `json:"column"`
	Key     string      `json:"key,omitempty"`
	Nearest string      `json:"nearest,omitempty"`
	Text    string      `json:"text"`
}

type sriovValidResource struct {
	Name      string            `json:"name"`
	Type      config.DeviceType `json:"deviceType"`
	Selectors int               `json:"selectors"`
}

// sriovValidation is what is said of one config.json.
type sriovValidation struct {
	Source    string               `json:"source"`
	Valid     bool                 `json:"valid"`
	Mistakes  []sriovFinding       `json:"mistakes"`
	Warnings  []sriovFinding       `json:"warnings"`
	Resources []sriovValidResource `json:"resources"`
}

func (f *sriovConfig) validate(stdin io.Reader, out io.Writer, format cli.Format) error {
	texts, err := f.read(stdin)
	if err != nil {
		return err
	}
	var all []sriovValidation
	var wrong []error
	for _, t := range texts {
		v := validateSriov(t, f.prefix)
		if !v.Valid {
			wrong = append(wrong, fmt.Errorf("%s: %s", cli.Plain(v.Source), count(len(v.Mistakes), "mistake")))
		}
		all = append(all, v)
	}
	if format == cli.FormatTable {
		err = writeSriovValidations(out, all)
	} else {
		err = cli.Print(out, format, cli.Table{}, all)
	}
	return errors.Join(append(wrong, err)...)
}

func validateSriov(t sriovText, prefix string) sriovValidation {
	v := sriovValidation{Source: t.source, Mistakes: []sriovFinding{}, Warnings: []sriovFinding{}, Resources: []sriovValidResource{}}
	c, warnings, err := config.Parse(t.text, config.Options{Prefix: prefix, Strict: true, NoDDPTool: !ddptool.Installed()})
	// The same without strictness has the keys of what strictness made an error.
	_, lenient, _ := config.Parse(t.text, config.Options{Prefix: prefix})
	for _, e := range sriovErrors(err) {
		finding := sriovFinding{Path: e.Path, Line: e.Line, Column: e.Column, Text: e.Text}
		for _, w := range lenient {
			if w.Line == e.Line && w.Column == e.Column && w.Path == e.Path && w.Text == e.Text {
				finding.Kind, finding.Key, finding.Nearest = w.Kind, w.Key, w.Nearest
			}
		}
		v.Mistakes = append(v.Mistakes, t.locate(finding))
	}
	for _, w := range warnings {
		v.Warnings = append(v.Warnings, t.locate(findingOf(w)))
	}
	for _, r := range c.Resources {
		v.Resources = append(v.Resources, sriovValidResource{Name: r.FullName(), Type: r.Type, Selectors: len(r.Selectors)})
	}
	v.Valid = len(v.Mistakes) == 0
	return v
}

func findingOf(w config.Warning) sriovFinding {
	return sriovFinding{Kind: w.Kind, Path: w.Path, Line: w.Line, Column: w.Column, Key: w.Key, Nearest: w.Nearest, Text: w.Text}
}

// sriovErrors are those that config.Parse has joined.
func sriovErrors(err error) []*config.Error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*config.Error
		for _, e := range joined.Unwrap() {
			all = append(all, sriovErrors(e)...)
		}
		return all
	}
	if e, ok := errors.AsType[*config.Error](err); ok {
		return []*config.Error{e}
	}
	return nil
}

// String is a finding's place below a source and what it says.
func (f sriovFinding) String() string {
	text := f.Text
	if f.Path != "" {
		text = f.Path + ": " + text
	}
	return text
}

func writeSriovValidations(out io.Writer, all []sriovValidation) error {
	for i, v := range all {
		var lines []string
		if i > 0 {
			lines = append(lines, "")
		}
		of := func(what string, findings []sriovFinding) {
			for _, f := range findings {
				lines = append(lines, cli.Plain(fmt.Sprintf("%s:%d:%d: %s: %s", v.Source, f.Line, f.Column, what, f)))
			}
		}
		of("mistake", v.Mistakes)
		of("warning", v.Warnings)
		if v.Valid {
			lines = append(lines, cli.Plain(fmt.Sprintf("%s: no mistake, %s, %s", v.Source, count(len(v.Warnings), "warning"), count(len(v.Resources), "resource"))))
		}
		if len(lines) > 0 {
			if _, err := fmt.Fprintln(out, strings.Join(lines, "\n")); err != nil {
				return err
			}
		}
		if len(v.Resources) == 0 {
			continue
		}
		t := cli.Table{Header: []string{"RESOURCE", "DEVICE TYPE", "SELECTORS"}}
		for _, r := range v.Resources {
			t.Rows = append(t.Rows, []string{r.Name, string(r.Type), fmt.Sprint(r.Selectors)})
		}
		if err := t.Write(out); err != nil {
			return err
		}
	}
	return nil
}
