package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/test/testkit"
)

var update = flag.Bool("update", false, "write docs/flags.md")

// The page of flags is what the commands declare. `make generate` writes it.
func TestFlagsPage(t *testing.T) {
	path := filepath.Join(testkit.Root(t), "docs/flags.md")
	want := flagsPage()
	if *update {
		testkit.Must(t, os.WriteFile(path, []byte(want), 0o644))
	}
	if diff := cmp.Diff(string(testkit.Value(os.ReadFile(path))(t)), want); diff != "" {
		t.Errorf("make generate would change docs/flags.md (-page +commands):\n%s", diff)
	}
}

const flagsIntro = `<!-- made from the commands by make generate -->
# Commands and flags

For all who start a server or call one: every command and flag, with its environment variable and its default. A flag overrides the variable. Servers also
read a YAML file (%[1]s--config%[1]s) with the flag names as keys; the variables override it, and an empty variable counts as not set. [Terms](concepts.md).
`

// flagsPage has a section for each server, and one for the other commands below
// each command of the program. The server with engines has one for each engine.
func flagsPage() string {
	var page strings.Builder
	fmt.Fprintf(&page, flagsIntro, "`")
	for _, top := range newRootCommand().Commands() {
		if top.Name() == "completion" || top.Name() == "help" {
			continue
		}
		var clients []*cobra.Command
		for _, c := range below(top) {
			switch {
			case c.Name() == "csi":
				writeEngines(&page, c)
			case c.Flags().Lookup("config") != nil:
				writeFlags(&page, "## `"+c.CommandPath()+"`", []*pflag.FlagSet{c.Flags()}, nil)
			case c.Runnable() || c.HasAvailableFlags():
				clients = append(clients, c)
			}
		}
		var sets []*pflag.FlagSet
		var names []string
		for _, c := range clients {
			if c.LocalFlags().HasAvailableFlags() {
				sets = append(sets, c.LocalFlags())
				names = append(names, strings.TrimPrefix(c.CommandPath(), "cleat "+top.Name()+" "))
			}
		}
		title := "## `cleat " + top.Name() + "`"
		if top.Name() == "csi" || top.Name() == "sriov" {
			title = "## `cleat " + top.Name() + "`: client commands"
		}
		fmt.Fprintf(&page, "\n%s\n", title)
		for _, c := range clients {
			if c.Runnable() {
				fmt.Fprintf(&page, "\n- `%s`: %s", strings.TrimSuffix(c.UseLine(), " [flags]"), c.Short)
			}
		}
		page.WriteString("\n")
		writeFlags(&page, "", sets, names)
	}
	return page.String()
}

func below(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, below(sub)...)
	}
	return all
}

// writeEngines writes the flags that concern all engines, then those of each.
func writeEngines(page *strings.Builder, c *cobra.Command) {
	var sets []*pflag.FlagSet
	var names []string
	for _, e := range csiProgram().Engines {
		declared, set := pflag.NewFlagSet(e.Name, pflag.ContinueOnError), pflag.NewFlagSet(e.Name, pflag.ContinueOnError)
		e.Flags(declared)
		declared.VisitAll(func(f *pflag.Flag) { set.AddFlag(c.Flags().Lookup(f.Name)) })
		sets, names = append(sets, set), append(names, e.Name)
	}
	common := pflag.NewFlagSet("csi", pflag.ContinueOnError)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !slices.ContainsFunc(sets, func(s *pflag.FlagSet) bool { return s.Lookup(f.Name) != nil }) {
			common.AddFlag(f)
		}
	})
	writeFlags(page, "## `"+c.CommandPath()+"`", []*pflag.FlagSet{common}, nil)
	writeFlags(page, "### Of its engines", sets, names)
}

var (
	variables = regexp.MustCompile(` \(env ([A-Z_, ]+)\)`)
	zero      = []string{"", "false", "0", "0s", "[]", "-1s"}
)

// writeFlags writes a table of the flags of several commands or engines. A flag
// that only some of them have shows their names.
func writeFlags(page *strings.Builder, title string, sets []*pflag.FlagSet, names []string) {
	host, _ := os.Hostname()
	of := map[string][]string{} // row -> names
	for i, set := range sets {
		set.VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			kind, usage := pflag.UnquoteUsage(f)
			env := ""
			if found := variables.FindStringSubmatch(usage); found != nil {
				usage, env = strings.Replace(usage, found[0], "", 1), "`"+strings.ReplaceAll(found[1], ", ", "`, `")+"`"
			}
			name, def := "`--"+f.Name+"`", ""
			if f.Shorthand != "" {
				name += ", `-" + f.Shorthand + "`"
			}
			switch {
			case strings.HasPrefix(kind, "stringTo"):
				name += " KEY=VALUE"
			case !strings.Contains(kind, "|") && kind != "":
				name += " " + strings.TrimSuffix(kind, "Array")
			}
			if !slices.Contains(zero, f.DefValue) && f.DefValue != host {
				def = "`" + f.DefValue + "`"
			}
			row := strings.Join([]string{name, env, def, strings.ReplaceAll(usage, "|", `\|`)}, " | ")
			if len(names) > 0 {
				of[row] = append(of[row], names[i])
			} else {
				of[row] = nil
			}
		})
	}
	if len(of) == 0 {
		return
	}
	var rows []string
	for row := range of {
		rows = append(rows, row)
	}
	slices.Sort(rows)
	if page.WriteString("\n"); title != "" {
		fmt.Fprintf(page, "%s\n\n", title)
	}
	if len(names) < 2 {
		page.WriteString("| flag | environment | default | description |\n|---|---|---|---|\n")
		for _, row := range rows {
			fmt.Fprintf(page, "| %s |\n", row)
		}
		return
	}
	page.WriteString("| flag | environment | default | description | of |\n|---|---|---|---|---|\n")
	for _, row := range rows {
		in := strings.Join(of[row], ", ")
		if len(of[row]) == len(sets) || strings.HasPrefix(in, "cleat ") { // or the parent, for all of them
			in = "all"
		}
		fmt.Fprintf(page, "| %s | %s |\n", row, in)
	}
}
