import { render } from "preact";

import "uplot/dist/uPlot.min.css";

import { App } from "./app";
import "./style.css";
import { apply } from "./theme";

apply();
render(<App />, document.getElementById("app")!);
