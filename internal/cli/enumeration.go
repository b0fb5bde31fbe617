package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const valuesAnnotation = "cleat-values"

// Enumerate names the values of a flag for shell completion.
func Enumerate(fs *pflag.FlagSet, flag string, values ...string) {
	if err := fs.SetAnnotation(flag, valuesAnnotation, values); err != nil {
		panic(err) // fs has no such flag
	}
}

// CompleteValues lets a command and its subcommands complete the values of all
// enumerations and output formats.
func CompleteValues(c *cobra.Command) {
	register := func(f *pflag.Flag) {
		values := f.Annotations[valuesAnnotation]
		if _, isFormat := f.Value.(*Format); isFormat {
			values = strings.Split(formats, ", ")
		}
		if len(values) > 0 {
			cobra.CheckErr(c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	c.PersistentFlags().VisitAll(register)
	c.LocalNonPersistentFlags().VisitAll(register)
	for _, sub := range c.Commands() {
		CompleteValues(sub)
	}
}
