package main

import (
	"bytes"
	_ "embed"
	"html/template"
	"strings"
	"time"

	"github.com/exclusive-go/exclusive/internal/story"
)

// The picture is one page without scripts or outside resources: for each story
// a drawing of each run, with a column per actor and a row per event, time
// running down. Rows have the same height, whether milliseconds or seconds lie
// between them, so labels never overlap.

//go:embed picture.html
var pictureHTML string

var pictureTemplate = template.Must(template.New("picture").Funcs(template.FuncMap{
	"draw": draw, "unguardedVerdict": unguardedVerdict, "guardedVerdict": guardedVerdict, "held": held,
}).Parse(pictureHTML))

func picture(results []result) ([]byte, error) {
	type sceneView struct {
		Scene              scene
		Story              story.Story
		Unguarded, Guarded *story.Report
	}
	type view struct {
		Database string
		Scenes   []sceneView
	}
	data := struct {
		Results []view
		Summary string
	}{Summary: summary(results)}
	for _, r := range results {
		v := view{Database: r.database}
		for _, s := range r.scenes {
			v.Scenes = append(v.Scenes, sceneView{s, s.story, s.unguarded, s.guarded})
		}
		data.Results = append(data.Results, v)
	}
	var page bytes.Buffer
	err := pictureTemplate.Execute(&page, data)
	return page.Bytes(), err
}

// The measures of a drawing, in pixels.
const (
	rowHeight  = 36
	top        = 40
	timeWidth  = 64
	laneWidth  = 44
	labelWidth = 370
	labelChars = 48 // that fit into labelWidth
)

// drawing is a run with coordinates.
type drawing struct {
	Width, Height, Bottom int
	Lanes                 []lane
	Bars                  []bar
	Marks                 []mark
}

type lane struct {
	X    int
	Name string
}

// bar is something that lasts: a lease or a pause.
type bar struct {
	X, Y, Height int
	Class        string
}

// mark is an event with its label.
type mark struct {
	X, Y, LabelX int
	Time         int64
	Class        string
	Lines        []string
}

// draw computes the coordinates of a run.
func draw(r *story.Report) drawing {
	x := make(map[string]int)
	var d drawing
	for _, actor := range []string{"A", "B", "C", "store"} {
		for _, e := range r.Events {
			if e.Actor == actor {
				x[actor] = timeWidth + laneWidth/2 + laneWidth*len(d.Lanes)
				d.Lanes = append(d.Lanes, lane{x[actor], actor})
				break
			}
		}
	}
	labels := timeWidth + laneWidth*len(d.Lanes) + 12
	d.Bottom = top + rowHeight*len(r.Events)
	d.Width, d.Height = labels+labelWidth, d.Bottom+10
	for i, e := range r.Events {
		y := top + rowHeight*i + rowHeight/2
		at, known := x[e.Actor]
		if !known { // several at once
			at = x["A"]
		}
		d.Marks = append(d.Marks, mark{at, y, labels, e.At.Milliseconds(), class(e), lines(e.Text)})
		if e.Until > e.At {
			d.Bars = append(d.Bars, bar{at, y, yOf(r.Events, e.Until) - y, string(e.Kind)})
		}
	}
	return d
}

// yOf is where a moment lies between the rows.
func yOf(events []story.Event, t time.Duration) int {
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].At > t {
			continue
		}
		y := top + rowHeight*i + rowHeight/2
		if i+1 == len(events) {
			return y + rowHeight/2
		}
		between := float64(t-events[i].At) / float64(events[i+1].At-events[i].At)
		return y + int(between*rowHeight)
	}
	return top
}

func class(e story.Event) string {
	if e.Outcome != "" {
		return string(e.Outcome)
	}
	return string(e.Kind)
}

// lines breaks a label that is too long where its outcome begins.
func lines(text string) []string {
	did, came, found := strings.Cut(text, ": ")
	if len(text) <= labelChars || !found {
		return []string{text}
	}
	return []string{did + ":", came}
}
