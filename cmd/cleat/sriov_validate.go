package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/inventory"
)

type sriovValidation struct {
	Source    string               `json:"source"`
	Valid     bool                 `json:"valid"`
	Mistakes  []strictjson.Problem `json:"mistakes"` // Kind is empty; the plugin would not start
	Warnings  []strictjson.Problem `json:"warnings"`
	Resources []sriovValidResource `json:"resources"`
}

type sriovValidResource struct {
	Name      string               `json:"name"`
	Type      inventory.DeviceType `json:"deviceType"`
	Selectors int                  `json:"selectors"`
}

func newSriovValidateCommand() *cobra.Command {
	var s session
	var f sriovConfig
	c := &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Validate a config.json strictly",
		Long: `Reports every mistake in the config.json of an SR-IOV device plugin, with line,
column and the probable intention. The SR-IOV network device plugin ignores a
misspelt key, and the selector then matches every device; this command is strict. A
valid but surprising setting is a warning.

FILE is --config-file by default; - reads standard input. It can be the manifest of
a ConfigMap: its key config.json is validated, or else all its keys, which the
SR-IOV network operator names after nodes.

The command fails on mistakes. "cleat sriov explain" shows the matching devices.`,
		Example: `  cleat sriov validate config.json
  cleat sriov validate configmap.yaml
  kubectl -n kube-system get configmap sriovdp-config -o yaml | cleat sriov validate -
  cleat sriov validate config.json -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("config-file") {
				return errors.New("FILE and --config-file are mutually exclusive: set one of them")
			}
			if err := s.bind(); err != nil {
				return err
			}
			if len(args) == 1 { // overrides the environment
				f.file = args[0]
			}
			texts, err := f.read(cmd.InOrStdin())
			if err != nil {
				return err
			}
			var all []sriovValidation
			var view cli.Paragraphs
			var wrong []error
			for _, t := range texts {
				v := validateSriov(t, f.prefix)
				if !v.Valid {
					wrong = append(wrong, fmt.Errorf("%s: %s", cli.Plain(v.Source), count(len(v.Mistakes), "mistake")))
				}
				all, view = append(all, v), append(view, v.view())
			}
			return errors.Join(append(wrong, s.printResult(cmd, view, all, nil))...)
		},
	}
	s.add(c.Flags(), f.add)
	return c
}

func validateSriov(t inventory.ConfigText, prefix string) sriovValidation {
	v := sriovValidation{Source: t.Source, Mistakes: []strictjson.Problem{}, Warnings: []strictjson.Problem{}, Resources: []sriovValidResource{}}
	c, warnings, err := inventory.ParseConfig(t.Text, inventory.ParseOptions{Prefix: prefix, Strict: true, NoDDPTool: !ddptool.Installed()})
	v.Mistakes = append(v.Mistakes, sriovErrors(err)...)
	v.Warnings = append(v.Warnings, warnings...)
	for _, found := range [][]strictjson.Problem{v.Mistakes, v.Warnings} {
		for i := range found {
			found[i].Line += t.Above
			found[i].Column += t.Indent
		}
	}
	for _, r := range c.Resources {
		v.Resources = append(v.Resources, sriovValidResource{Name: r.FullName(), Type: r.Type, Selectors: len(r.Selectors)})
	}
	v.Valid = len(v.Mistakes) == 0
	return v
}

// sriovErrors splits a joined error of inventory.ParseConfig.
func sriovErrors(err error) (all []strictjson.Problem) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, sriovErrors(e)...)
		}
	} else if e, ok := errors.AsType[*strictjson.Problem](err); ok {
		all = append(all, *e)
	}
	return all
}

func (v sriovValidation) view() cli.View {
	var view cli.Views
	add := func(what string, found []strictjson.Problem) {
		for _, w := range found {
			path := w.Path
			if path != "" {
				path += ": "
			}
			view = append(view, cli.Textf("%s:%d:%d: %s: %s%s", v.Source, w.Line, w.Column, what, path, w.Text))
		}
	}
	add("mistake", v.Mistakes)
	add("warning", v.Warnings)
	if v.Valid {
		view = append(view, cli.Textf("%s: no mistake, %s, %s", v.Source, count(len(v.Warnings), "warning"), count(len(v.Resources), "resource")))
	}
	if len(v.Resources) > 0 {
		t := cli.Table{Header: []string{"RESOURCE", "DEVICE TYPE", "SELECTORS"}}
		for _, r := range v.Resources {
			t.Add(r.Name, r.Type, r.Selectors)
		}
		view = append(view, t)
	}
	return view
}

// sriovConfigFile is the path in the image of the SR-IOV network device plugin.
const sriovConfigFile = "/etc/pcidp/config.json"

type sriovConfig struct {
	file   string
	prefix string
}

func (f *sriovConfig) add(e *pflag.FlagSet) {
	e.StringVar(&f.file, "config-file", sriovConfigFile, "config.json of the device plugin")
	e.StringVar(&f.prefix, "resource-prefix", inventory.DefaultPrefix, "prefix of resources without one in the configuration")
}

// load reads one configuration; as in the plugin, probable mistakes are
// warnings.
func (f *sriovConfig) load(stdin io.Reader) (inventory.Config, []strictjson.Problem, error) {
	texts, err := f.read(stdin)
	if err != nil {
		return inventory.Config{}, nil, err
	}
	if len(texts) > 1 {
		var sources []string
		for _, t := range texts {
			sources = append(sources, t.Source)
		}
		return inventory.Config{}, nil, fmt.Errorf("%s contains %d configurations (%s), expected one", f.file, len(texts), strings.Join(sources, "; "))
	}
	c, warnings, err := inventory.ParseConfig(texts[0].Text, inventory.ParseOptions{Prefix: f.prefix})
	if err != nil {
		return c, nil, fmt.Errorf("%s: %w", texts[0].Source, err)
	}
	return c, warnings, nil
}

// maxSriovManifest limits a manifest, in bytes; the API server's limit is lower.
const maxSriovManifest = 4 << 20

// read returns each config.json of the file, at least one.
func (f *sriovConfig) read(stdin io.Reader) ([]inventory.ConfigText, error) {
	name := f.file
	if name == "-" {
		name = "standard input"
	}
	text, err := cli.ReadInput(stdin, f.file, maxSriovManifest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w (--config-file)", name, err)
	}
	return inventory.ConfigTexts(name, text)
}
