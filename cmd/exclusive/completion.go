package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/exclusive-go/exclusive/cmd/exclusive/internal/target"
)

// completeValues has the shell complete the value of a flag: one of values, or
// a list of them with commas between if the flag takes a list.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if cmd.Flag(flag).Value.Type() == "stringSlice" {
		complete = completeList(values)
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // it has been completed already
	}
}

// completeList completes what follows the last comma, with what is not there yet.
func completeList(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) (list []cobra.Completion, _ cobra.ShellCompDirective) {
		before := typed[:strings.LastIndex(typed, ",")+1]
		there := strings.Split(before, ",")
		for _, value := range values {
			if !slices.Contains(there, value) {
				list = append(list, before+value)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// nameFile has the shell complete the value of a flag as the name of a file.
func nameFile(flags *pflag.FlagSet, flag string) {
	if err := cobra.MarkFlagFilename(flags, flag); err != nil {
		panic(err) // there is no such flag
	}
}

// completeRest keeps the shell from offering files where none belongs, in all
// commands: for flags that say nothing of their own (one whose value is a file
// does), and for arguments that are refused. A DSN begins with one of the schemes.
func completeRest(cmd *cobra.Command) {
	var schemes []string
	for form := range strings.Lines(target.Forms) {
		scheme, _, _ := strings.Cut(form, "://")
		schemes = append(schemes, scheme+"://")
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		_, completed := cmd.GetFlagCompletionFunc(f.Name)
		if completed || f.NoOptDefVal != "" || len(f.Annotations) > 0 {
			return
		}
		complete := cobra.CompletionFunc(cobra.NoFileCompletions)
		if f.Name == "dsn" {
			complete = cobra.FixedCompletions(schemes, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic(err) // it was not completed a moment ago
		}
	})
	if cmd.ValidArgsFunction == nil && cmd.Args != nil && cmd.Args(cmd, []string{"argument"}) != nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		completeRest(sub)
	}
}
