package main

import (
	"io"

	"github.com/exclusive-go/exclusive/internal/story"
)

// The form of the demo's --json. Times are milliseconds from the story's beginning.
type (
	resultJSON struct {
		OK        bool           `json:"ok"`
		Databases []databaseJSON `json:"databases"`
	}
	databaseJSON struct {
		Database string      `json:"database"`
		OK       bool        `json:"ok"`
		Stories  []storyJSON `json:"stories"`
	}
	storyJSON struct {
		ID        string     `json:"id"`
		Title     string     `json:"title"`
		Promise   string     `json:"promise"`
		OK        bool       `json:"ok"`
		Unguarded reportJSON `json:"unguarded"`
		Guarded   reportJSON `json:"guarded"`
	}
	reportJSON struct {
		Stored  string      `json:"stored"`
		Want    string      `json:"want"`
		Damaged bool        `json:"damaged"`
		Problem string      `json:"problem,omitempty"`
		Events  []eventJSON `json:"events"`
	}
	eventJSON struct {
		At      float64       `json:"at_ms"`
		Until   float64       `json:"until_ms"`
		Actor   string        `json:"actor"`
		Kind    story.Kind    `json:"kind"`
		Token   int64         `json:"token,omitempty"`
		Value   string        `json:"value,omitempty"`
		Outcome story.Outcome `json:"outcome,omitempty"`
		Text    string        `json:"text"`
	}
)

func writeJSON(w io.Writer, results []result, ok bool) error {
	out := resultJSON{OK: ok}
	for _, r := range results {
		d := databaseJSON{Database: r.database, OK: r.ok()}
		for _, s := range r.scenes {
			d.Stories = append(d.Stories, storyJSON{
				ID: s.story.ID, Title: s.story.Title, Promise: s.story.Promise, OK: s.ok(),
				Unguarded: reportOf(s.unguarded), Guarded: reportOf(s.guarded),
			})
		}
		out.Databases = append(out.Databases, d)
	}
	return encodeJSON(w, out)
}

func reportOf(r *story.Report) reportJSON {
	j := reportJSON{Stored: r.Stored, Want: r.Want, Damaged: r.Damaged}
	if err := r.Failure(); err != nil {
		j.Problem = err.Error()
	}
	for _, e := range r.Events {
		j.Events = append(j.Events, eventJSON{
			At: float64(e.At.Microseconds()) / 1000, Until: float64(e.Until.Microseconds()) / 1000,
			Actor: e.Actor, Kind: e.Kind, Token: e.Token, Value: e.Value, Outcome: e.Outcome, Text: e.Text,
		})
	}
	return j
}
